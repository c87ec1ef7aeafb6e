"""What the compiler made: no code of one instruction set can stand in for another's, no flag changes arithmetic."""

import json
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
COMMANDS = BUILD / "compile_commands.json"


def isas() -> list[str]:
    text = (BUILD / "generated/csrc/kernels/core/isa_list.h").read_text()
    return re.findall(r"X\((\w+)\)", text.split("SO_FOR_EACH_ISA(X)", 1)[1])


def leaks(isa: str, symbols: str) -> list[str]:
    """Weak or global definitions outside the namespace of the instruction set (they could replace baseline code). The
    vector forms of functions (_ZGV..., the vector function ABI) carry the scalar's mangled name."""
    vector_form = re.compile(rf"_ZGV[bcde]N\d+v__ZN11step_oracle{len(isa)}{isa}")
    out = []
    for line in symbols.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) != 3 or parts[1] not in "WVTDBRuGS" or f"{isa}::" in parts[2]:
            continue
        if not vector_form.match(parts[2]):
            out.append(parts[2])
    return out


@pytest.mark.policy
def test_isa_objects_define_nothing_outside_their_namespace() -> None:
    checked = 0
    for isa in isas():
        folder = BUILD / f"csrc/kernels/CMakeFiles/kernels_{isa}.dir"
        for obj in sorted(folder.rglob("*.o")):
            nm = subprocess.run(["nm", "-C", "--defined-only", obj], check=True, capture_output=True, text=True)
            assert not leaks(isa, nm.stdout), f"{obj.name} ({isa}) defines {leaks(isa, nm.stdout)[:5]}"
            checked += 1
    assert checked >= len(isas()), "the kernels are built before this test"


@pytest.mark.policy
def test_the_leak_check_can_fail() -> None:
    assert leaks("avx2", "0000 W std::vector<int>::push_back(int const&)")
    assert not leaks("avx2", "0000 T step_oracle::avx2::gemm_body")
    assert not leaks("avx512", "0000 T _ZGVeN16v__ZN11step_oracle6avx5124mufu7ex2_ftzEf")
    assert leaks("avx2", "0000 T _ZGVeN16v__ZN11step_oracle6avx5124mufu7ex2_ftzEf")


@pytest.mark.policy
def test_flags_of_the_kernels() -> None:
    rows = [r for r in json.loads(COMMANDS.read_text()) if "/csrc/kernels/" in r["file"]]
    assert rows
    for row in rows:
        command = row["command"]
        assert "-ffp-contract=off" in command, row["file"]
        for banned in ("-march=native", "-ffast-math", "-funsafe-math-optimizations", "-flto", "-Ofast"):
            assert banned not in command, f"{row['file']}: {banned}"


BANNED_CALLS = re.compile(
    r"\bstd::(exp|exp2|log|log2|log10|log1p|expm1|pow|sin|cos|tan|tanh|sinh|cosh|erf|erfc|hypot|cbrt|tgamma|lgamma)f?\s*\(")


@pytest.mark.policy
def test_no_host_libm_in_kernels() -> None:
    found = []
    for path in sorted((ROOT / "csrc/kernels").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".inc"}:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if BANNED_CALLS.search(line.split("//")[0]):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
    assert BANNED_CALLS.search("y = std::exp(x)")


@pytest.mark.policy
def test_no_tolerances_in_tests() -> None:
    words = re.compile(r"\b(allclose|assert_close|isclose|EXPECT_NEAR|approx)\s*\(")
    found = [f"{p.relative_to(ROOT)}:{n}" for p in sorted((ROOT / "tests").rglob("*")) if p.suffix in {".py", ".cpp"}
             for n, line in enumerate(p.read_text().splitlines(), 1) if words.search(line) and "policy" not in str(p)]
    assert not found, "bytes are the bar: " + ", ".join(found)
