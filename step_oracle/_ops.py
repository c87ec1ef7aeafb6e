"""torch.ops.oracle, which loads the virtual card when it is first asked for an op."""

from __future__ import annotations

from typing import Any

import torch


class _Unloaded:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from . import device

        device.extension()
        loaded = torch._ops._OpNamespace("oracle")
        setattr(torch.ops, "oracle", loaded)  # noqa: B010
        return getattr(loaded, name)


def install() -> None:
    setattr(torch.ops, "oracle", _Unloaded())  # noqa: B010
