"""A model's first bytes from the seed, on any host. docs/initialisation.md describes the term.

    with observe(seed=1337) as seen:
        model = GPT(config)
    term = seen.term(model)          # JSON: the draws, verified byte for byte against the model
    state = tensors(term)            # the same bytes, on any host
"""

from .compute import run, tensors
from .observe import Observed, host_dispatch, observe
from .term import TermError, check

__all__ = ["Observed", "TermError", "check", "host_dispatch", "observe", "run", "tensors"]
