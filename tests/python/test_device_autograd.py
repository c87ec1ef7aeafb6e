"""The engine counts devices once, at the first backward pass: that must not matter."""

import subprocess
import sys

CPU_FIRST = """
import torch, step_oracle
(torch.ones(2, requires_grad=True) * 2).sum().backward()
step_oracle.set_card("h100-sxm")
x = torch.ones(2, device="oracle", requires_grad=True)
(x * 3).sum().backward()
print(x.grad.cpu().tolist())
"""

CARD_AFTER = """
import torch, step_oracle
step_oracle.set_card("h100-sxm")
x = torch.ones(2, device="oracle", requires_grad=True)
(x * 3).sum().backward()
step_oracle.set_card("l4", index=1)
y = torch.ones(2, device="oracle:1", requires_grad=True)
(y * 4).sum().backward()
print(x.grad.cpu().tolist() + y.grad.cpu().tolist())
"""


def printed(code: str) -> str:
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    return out.stdout.strip()


def test_a_backward_pass_of_the_cpu_before_the_first_use() -> None:
    assert printed(CPU_FIRST) == "[3.0, 3.0]"


def test_a_card_that_is_added_after_a_backward_pass() -> None:
    assert printed(CARD_AFTER) == "[3.0, 3.0, 4.0, 4.0]"
