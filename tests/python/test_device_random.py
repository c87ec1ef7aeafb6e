"""Generators of the device: CUDA's state and its rules."""

from __future__ import annotations

import struct

import pytest
import torch

import step_oracle


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("h100-sxm")


def seed_and_offset(state: torch.Tensor) -> tuple[int, int]:
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16
    seed, offset = struct.unpack("<QQ", bytes(state.tolist()))
    return seed, offset


def test_manual_seed_reaches_the_device() -> None:
    torch.manual_seed(1234)
    assert seed_and_offset(torch.oracle.get_rng_state()) == (1234, 0)
    assert torch.oracle.initial_seed() == 1234
    torch.oracle.manual_seed(5)
    assert seed_and_offset(torch.oracle.get_rng_state()) == (5, 0)


def test_a_new_generator_has_the_default_seed() -> None:
    generator = torch.Generator(device="oracle")
    assert seed_and_offset(generator.get_state()) == (67280421310721, 0)
    generator.manual_seed(2**64 - 1)
    assert seed_and_offset(generator.get_state()) == (2**64 - 1, 0)
    generator.set_offset(8)
    assert seed_and_offset(generator.clone_state().get_state()) == (2**64 - 1, 8)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(6)


def test_states_are_set_and_restored() -> None:
    torch.manual_seed(9)
    state = torch.tensor(list(struct.pack("<QQ", 77, 12)), dtype=torch.uint8)
    with torch.random.fork_rng(devices=[0], device_type="oracle"):
        torch.oracle.set_rng_state(state)
        assert seed_and_offset(torch.oracle.get_rng_state()) == (77, 12)
    assert seed_and_offset(torch.oracle.get_rng_state()) == (9, 0)
    torch.oracle.set_rng_state(state[:8])  # a seed alone
    assert seed_and_offset(torch.oracle.get_rng_state()) == (77, 0)
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.oracle.set_rng_state(state[:12])
