"""A row's tensors: from raw words, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from operations import DTYPES

INFINITY = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80, "f64": 0x7FF << 52}


def tensor(dtype: str, raw: np.ndarray[Any, Any]) -> torch.Tensor:
    signed = raw.view({1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[raw.itemsize])
    return torch.from_numpy(signed.copy()).view(DTYPES[dtype])


def words(x: torch.Tensor, one_nan: str | None = None) -> np.ndarray[Any, Any]:
    """the elements' bits; all NaN of type `one_nan` as one: where the tool does not know their pattern"""
    x = x.cpu().contiguous()
    size = x.element_size()
    plain = x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    out = plain.numpy().reshape(-1).view(f"<u{size}")
    if one_nan and x.dtype == DTYPES[one_nan]:
        nan = (out & np.array((1 << (8 * size - 1)) - 1, out.dtype)) > np.array(INFINITY[one_nan], out.dtype)
        out = np.where(nan, np.array((1 << (8 * size - 1)) - 1, out.dtype), out)
    return out
