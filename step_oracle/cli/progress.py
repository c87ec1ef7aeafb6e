"""Progress bars on the terminal (standard error, nothing where that is not a terminal)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@contextlib.contextmanager
def progress_bar(title: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Gives advance(done, total)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Rate(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.2f} steps/s" if task.speed else "")


@contextlib.contextmanager
def step_bar(title: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """progress_bar for walks: with steps a second, and the time left."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not sys.stderr.isatty(),
                  speed_estimate_period=300) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
