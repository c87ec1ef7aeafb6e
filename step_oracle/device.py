"""The torch device "oracle": this module is ``torch.oracle``.

Importing it loads nothing. Where torch sees no CUDA device, ``import step_oracle`` makes torch know the name
"oracle"; the extension that registers the device is loaded on the first use of it (torch calls ``_lazy_init``), or by
``step_oracle.set_card``. Where there is a CUDA device, the name too waits for ``set_card``: a registered
PrivateUse1 device becomes torch's accelerator, and CUDA's backward pass needs that place.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import warnings
from collections.abc import Iterable
from types import ModuleType, TracebackType
from typing import Any

import torch

from .cards import DEFAULT_CARD, PLAN_FOLDER

_extension: ModuleType | None = None
_loaded = False  # the device is registered and has a card
_seed: int | None = None  # of a torch.manual_seed before the device was loaded


# --- registration ---------------------------------------------------------------------------------------------------


def extension() -> ModuleType:
    """step_oracle._oracle. Loading it registers the device, so that a process which uses CUDA refuses."""
    global _extension
    if _extension is None:
        if torch.cuda.is_initialized():
            raise RuntimeError(
                "this process uses CUDA, and torch has room for one accelerator: use the virtual card in another one"
            )
        register_name()
        _extension = importlib.import_module("step_oracle._oracle")
        _extension.set_plan_folder(str(PLAN_FOLDER))
        atexit.register(_extension.stop_autograd)
        atexit.register(_say_what_was_assumed)
    return _extension


def register_name() -> None:
    """Let torch parse "oracle" and find this module as torch.oracle. Idempotent."""
    if hasattr(torch, "oracle"):
        return
    torch.utils.rename_privateuse1_backend("oracle")
    torch._register_device_module("oracle", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _hide_unloaded_accelerator()


def _hide_unloaded_accelerator() -> None:
    """A registered name makes torch ask a device that is not there: torch.distributed.barrier() would raise."""
    ask = torch._C._get_accelerator

    def get_accelerator(*check: bool) -> torch.device:
        return torch.device("cpu") if _extension is None else ask(*check)

    torch._C._get_accelerator = get_accelerator  # type: ignore[assignment]


def ensure_loaded(first_card: str | None = None) -> None:
    """Register the device, with ``first_card`` as oracle:0; without it the default card, said aloud."""
    global _loaded
    if _loaded:
        return
    if extension().forked():
        raise RuntimeError(
            "Cannot use the virtual card in a forked process; start it with the 'spawn' method "
            "(torch.multiprocessing.set_start_method('spawn'))"
        )
    if first_card is None:
        warnings.warn(
            f"no card was chosen: device 'oracle' is {DEFAULT_CARD}. Choose with step_oracle.set_card(name); "
            "`step-oracle cards` lists them",
            stacklevel=4,
        )
    extension().set_card(0, first_card or DEFAULT_CARD)
    _loaded = True
    if _seed is not None:
        manual_seed_all(_seed)


def _say_what_was_assumed() -> None:
    """Once a process, at its end: how many matrix products had no plan. Tests and commands have their own reports."""
    from .plans import assumed_notice, notice_is_wanted

    if notice_is_wanted() and (notice := assumed_notice(extension().plan_tally())):
        print(f"step-oracle: {notice}", file=sys.stderr)


def _lazy_init() -> None:
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot use the virtual card in a forked process; start it with the 'spawn' method "
            "(torch.multiprocessing.set_start_method('spawn'))"
        )
    ensure_loaded()


def is_loaded() -> bool:
    return _loaded


def _is_in_bad_fork() -> bool:
    return _extension is not None and bool(_extension.forked())


# --- devices --------------------------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether a card is there: after set_card or the first use. A process that only imported step_oracle (to record on
    the CPU, say) has no accelerator, and torch.accelerator and DataLoader(pin_memory=True) act as without it."""
    return _loaded


def is_initialized() -> bool:
    return _loaded


def init() -> None:
    _lazy_init()


def device_count() -> int:
    """How many cards there are; none before set_card or the first use."""
    return int(extension().device_count()) if _loaded else 0


def current_device() -> int:
    ensure_loaded()
    return int(extension().current_device())


def set_device(device: Any) -> None:
    index = _index(device)
    if index >= 0:
        extension().set_device(index)


def _index(device: Any) -> int:
    """The index of "oracle", "oracle:1", a torch.device, an int or None; -1 is the current device."""
    ensure_loaded()
    if device is None:
        return -1
    if isinstance(device, int):
        return device
    parsed = torch.device(device)
    if parsed.type != "oracle":
        raise ValueError(f"expected a device of type oracle, not {parsed}")
    return -1 if parsed.index is None else parsed.index


class device:
    """Context manager: the current device."""

    def __init__(self, device: Any) -> None:
        self.index = _index(device)
        self.previous = -1

    def __enter__(self) -> None:
        self.previous = current_device()
        set_device(self.index)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_device(self.previous)


class device_of(device):
    """Context manager: the device of a tensor; nothing for a tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device.index if tensor.device.type == "oracle" else None)


def synchronize(device: Any = None) -> None:
    """Nothing: a kernel has ended when its call returns."""


def get_device_name(device: Any = None) -> str:
    return str(get_device_properties(device).name)


class DeviceProperties:
    """The properties that torch.cuda.get_device_properties gives, as far as they enter the bytes."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.card: str = row["name"]
        self.name: str = row["product"]
        self.multi_processor_count: int = row["sms"]
        self.max_threads_per_multi_processor: int = row["threads_per_sm"]
        self.major, self.minor = (int(part) for part in row["compute_capability"].split("."))

    def __repr__(self) -> str:
        return (
            f"DeviceProperties(card='{self.card}', name='{self.name}', major={self.major}, minor={self.minor}, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"max_threads_per_multi_processor={self.max_threads_per_multi_processor})"
        )


def get_device_properties(device: Any = None) -> DeviceProperties:
    return DeviceProperties(extension().card(_index(device)))


def get_device_capability(device: Any = None) -> tuple[int, int]:
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return including_emulation or get_device_capability() >= (8, 0)


# --- random numbers -------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    ensure_loaded()
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every card; before the first use, remembers the seed for it."""
    global _seed
    _seed = int(seed)
    if _loaded:
        for index in range(device_count()):
            _generator(index).manual_seed(_seed)


def seed() -> None:
    _generator(None).seed()


def seed_all() -> None:
    first = _generator(0).seed()
    for index in range(1, device_count()):
        _generator(index).manual_seed(first)


def initial_seed() -> int:
    return int(_generator(None).initial_seed())


def _generator(device: Any) -> torch.Generator:
    return extension().default_generator(_index(device))  # type: ignore[no-any-return]


def get_rng_state(device: Any = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    ensure_loaded()
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# --- memory ---------------------------------------------------------------------------------------------------------


def memory_allocated(device: Any = None) -> int:
    return int(extension().memory(_index(device))["allocated"])


def max_memory_allocated(device: Any = None) -> int:
    return int(extension().memory(_index(device))["peak"])


def memory_reserved(device: Any = None) -> int:
    return int(extension().memory(_index(device))["reserved"])


def reset_peak_memory_stats(device: Any = None) -> None:
    extension().reset_peak_memory(_index(device))


def empty_cache() -> None:
    if _loaded:
        extension().empty_cache()
