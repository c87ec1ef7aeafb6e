"""What a trace's header says of the machine, the process and torch's numeric switches."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from typing import Any

import torch

from . import _record

VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO", "OMP_NUM_THREADS",
             "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")


def environment(device: str) -> dict[str, Any]:
    """``device``: the kind that the recorded ops run on: "cpu", "cuda" or "oracle"."""
    from . import __version__

    e: dict[str, Any] = {
        "recorder": __version__,
        "device": device,
        "torch": str(torch.__version__),
        "torch_commit": str(torch.version.git_version or ""),
        "python": platform.python_version(),
        "host_isa": torch.backends.cpu.get_cpu_capability(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "argv": [str(a) for a in getattr(sys, "argv", [])],
        "pid": os.getpid(),
        "created": int(time.time()),
        "switches": switches(),
        "cards": _cards(device),
    }
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        e["rank"], e["world"] = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if torch.version.cuda:
        e["cuda"] = str(torch.version.cuda)
        e["driver"] = _driver()
        e["cudnn"] = str(torch.backends.cudnn.version() or "")
        e["cublas"] = _cublas()
        e["cublaslt"] = _cublaslt()
        e["nccl"] = _nccl()
    return e


def switches() -> dict[str, str]:
    b = torch.backends
    out: dict[str, object] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda.matmul.allow_tf32": b.cuda.matmul.allow_tf32,
        "cuda.matmul.allow_fp16_reduced_precision_reduction": b.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "cuda.matmul.allow_bf16_reduced_precision_reduction": b.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cuda.matmul.allow_fp16_accumulation": b.cuda.matmul.allow_fp16_accumulation,
        "cuda.flash_sdp": b.cuda.flash_sdp_enabled(),
        "cuda.mem_efficient_sdp": b.cuda.mem_efficient_sdp_enabled(),
        "cuda.math_sdp": b.cuda.math_sdp_enabled(),
        "cuda.cudnn_sdp": b.cuda.cudnn_sdp_enabled(),
        "cudnn.allow_tf32": b.cudnn.allow_tf32,
        "cudnn.benchmark": b.cudnn.benchmark,
        "cudnn.deterministic": b.cudnn.deterministic,
        "mkldnn": b.mkldnn.enabled if hasattr(b.mkldnn, "enabled") else b.mkldnn.is_available(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "default_dtype": torch.get_default_dtype(),
    }
    out |= {f"env.{name}": os.environ[name] for name in VARIABLES if name in os.environ}
    return {key: str(value).removeprefix("torch.") for key, value in out.items()}


def _cards(device: str) -> list[dict[str, Any]]:
    if device == "cuda":
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [{"index": i, "name": p.name, "sms": p.multi_processor_count,
                 "threads_per_sm": p.max_threads_per_multi_processor, "cc_major": p.major, "cc_minor": p.minor,
                 "memory": p.total_memory, **_record.card_facts(i)} for i, p in enumerate(found)]
    if device == "oracle":
        from .cards import get_card

        count = torch.oracle.device_count()  # type: ignore[attr-defined]
        cards = [(i, get_card(i)) for i in range(count)]
        return [{"index": i, "name": c.name, "sms": c.sms, "threads_per_sm": c.threads_per_sm,
                 "cc_major": int(c.compute_capability.split(".")[0]),
                 "cc_minor": int(c.compute_capability.split(".")[1]), "memory": 0} for i, c in cards]
    return []


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def _driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as f:
            words = f.readline().split()
        return next((w for w in words if w[:1].isdigit() and "." in w), "")
    except OSError:
        return ""


def _loaded(name: str) -> ctypes.CDLL | None:
    """A library that is in this process already."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        path = next((line.split()[-1] for line in f if name in line), None)
    return None if path is None else ctypes.CDLL(path)


def _cublas() -> str:
    """The version of the cuBLAS that is loaded in this process."""
    try:
        library = _loaded("libcublas.so")
        parts = [ctypes.c_int() for _ in range(3)]  # major, minor, patch
        if library is None or any(library.cublasGetProperty(i, ctypes.byref(p)) for i, p in enumerate(parts)):
            return ""
        return ".".join(str(p.value) for p in parts)
    except (OSError, AttributeError):
        return ""


def _cublaslt() -> str:
    """The version of the cuBLASLt that is loaded in this process."""
    try:
        library = _loaded("libcublasLt.so")
        if library is None:
            return ""
        version = library.cublasLtGetVersion
        version.restype = ctypes.c_size_t
        return str(version())
    except (OSError, AttributeError):
        return ""


def _nccl() -> str:
    try:
        return ".".join(str(n) for n in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError, ImportError):
        return ""
