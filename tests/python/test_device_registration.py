"""What loading and leaving the device does to a process. Each case is a process of its own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def run_ok(code: str, **environment: str) -> str:
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_gives_the_name_and_loads_nothing() -> None:
    run_ok("""
        import sys, torch, step_oracle
        assert str(torch.device("oracle:1")) == "oracle:1"
        assert torch.oracle is step_oracle.device
        assert not torch.accelerator.is_available() and torch.oracle.device_count() == 0
        assert len(list(torch.utils.data.DataLoader([1, 2], pin_memory=True))) == 2
        torch.manual_seed(7)
        w = torch.ones(3, requires_grad=True)
        (w * 2).sum().backward()
        assert "step_oracle._oracle" not in sys.modules and not torch.oracle.is_initialized()
    """)


def test_import_beside_cuda_registers_nothing() -> None:
    run_ok("""
        import torch
        torch.cuda.device_count = lambda: 1
        import step_oracle
        assert torch._C._get_privateuse1_backend_name() == "privateuseone" and not hasattr(torch, "oracle")
        step_oracle.set_card("t4")   # asked for: loaded
        assert torch.empty(2, device="oracle").device.type == "oracle"
    """)


def test_a_process_that_uses_cuda_is_refused() -> None:
    done = run("""
        import torch, step_oracle
        torch.cuda.is_initialized = lambda: True
        step_oracle.set_card("t4")
    """)
    assert done.returncode == 1
    assert "use the virtual card in another one" in done.stderr


def test_default_card_is_said_once() -> None:
    done = run("""
        import torch, step_oracle
        torch.empty(2, device="oracle"); torch.empty(2, device="oracle")
        assert torch.oracle.get_device_properties().card == "h100-sxm"
    """)
    assert done.returncode == 0 and done.stderr.count("no card was chosen: device 'oracle' is h100-sxm") == 1


@pytest.mark.parametrize("use", ["torch.empty(2, device='oracle')", "w.to('oracle')", "torch.oracle.init()"])
def test_first_use_loads_and_keeps_an_earlier_seed(use: str) -> None:
    run_ok(f"""
        import torch, step_oracle, warnings
        warnings.simplefilter("ignore")
        torch.manual_seed(41)
        w = torch.ones(2)
        {use}
        assert torch.oracle.initial_seed() == 41
    """)


BACKWARD = """
    import torch, step_oracle, sys
    step_oracle.set_card("l40s")
    a, b = (torch.randn(9, 9).to("oracle").requires_grad_() for _ in range(2))
    c = a @ b
    c.backward(torch.ones(9, 9).to("oracle"))
    kept = c, a.grad
"""


def exits_cleanly(times: int, ending: str, code: int) -> None:
    codes = [run(BACKWARD + ending).returncode for _ in range(times)]
    assert codes == [code] * times


# Without the orderly end of autograd's threads half of these died with SIGABRT.
@pytest.mark.parametrize(("ending", "code"), [("", 0), ("    sys.exit(3)", 3), ("    raise KeyError('x')", 1)])
def test_exit_after_backward(ending: str, code: int) -> None:
    exits_cleanly(1, ending, code)


@pytest.mark.slow
def test_exit_after_backward_20_times() -> None:
    exits_cleanly(20, "", 0)


def test_backward_works_in_an_exit_handler() -> None:
    handler = """
    import atexit
    def late():
        a.grad = b.grad = None
        (a @ b).backward(torch.ones(9, 9).to("oracle"))
        print("late", tuple(a.grad.shape))
    atexit.register(late)
    """
    assert run_ok(handler + BACKWARD) == "late (9, 9)\n"


def test_fork_is_refused_and_harmless_to_the_parent() -> None:
    run_ok("""
        import os, torch, step_oracle
        step_oracle.set_card("l40s")
        a = torch.ones(3).to("oracle")
        pid = os.fork()
        if pid == 0:
            caught = 0
            for use in (lambda: a.clone(), lambda: torch.empty(2, device="oracle"), lambda: a.zero_()):
                try:
                    use()
                except (RuntimeError, NotImplementedError) as error:
                    caught += "spawn" in str(error)
            os._exit(caught)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert a.clone().cpu().tolist() == [1.0, 1.0, 1.0]
    """)


def test_poisoned_memory_is_nan() -> None:
    run_ok(
        """
        import torch, step_oracle
        step_oracle.set_card("t4")
        assert torch.empty(100, device="oracle").cpu().isnan().all()
        """,
        STEP_ORACLE_DEBUG_MEMORY="poison",
    )


def test_protected_memory_faults_outside_of_operators() -> None:
    done = run(
        """
        import ctypes, torch, step_oracle
        step_oracle.set_card("t4")
        a = torch.ones(40, 40).to("oracle").requires_grad_()
        b = ((a @ a).t().contiguous() * 2 + a).sum()
        b.backward()
        print(b.item(), a.grad[0, 0].item(), flush=True)
        ctypes.c_float.from_address(a.data_ptr()).value
        """,
        STEP_ORACLE_DEBUG_MEMORY="protect",
    )
    assert done.returncode == -signal.SIGSEGV and done.stdout == "129600.0 161.0\n", done.stderr
