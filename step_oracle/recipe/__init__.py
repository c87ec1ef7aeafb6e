"""Runs as documents (docs/recipe-format.md): written from a recorded run, verified on any CPU."""

from .document import Recipe, load
from .runs import Run
from .verification import Failure, Verdict, audit, audits, resurrect, verify
from .writer import write

__all__ = ["Failure", "Recipe", "Run", "Verdict", "audit", "audits", "load", "resurrect", "verify", "write"]
