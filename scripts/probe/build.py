"""Gets step_oracle._record for the torch at hand: what is built, or a build from this tree and what it carries.

A tree that was packed by ``scripts/card_probe --pack`` carries the build's needs in .deps/ (laid out as /usr is), so
that nothing is fetched. What cannot be found is named.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from .source import ROOT
from .store import ProbeError

DEPS = ROOT / ".deps/usr"
MODEL = ROOT / "build/tests/arith/exhaustive"  # the model of the function unit, from scripts/build --tests


def ready() -> str:
    """Empty where _record can be imported for this torch; else why not."""
    code = (
        "import torch, step_oracle._record as r; a, b = str(torch.__version__).split('+')[0], r.TORCH_VERSION; "
        "raise SystemExit(0 if a == b else f'built for torch {b}, and torch {a} is here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unknown"])[-1]


def missing_tools(path: str) -> list[str]:
    found = []
    for tool, where in (
        ("cmake", "pip's cmake"),
        ("ninja", "pip's ninja"),
        ("g++", "the compiler"),
        ("flatc", "flatbuffers-compiler"),
    ):
        if shutil.which(tool, path=path) is None:
            found.append(f"{tool} ({where})")
    for name, where in (("flatbuffers/flatbuffers.h", "libflatbuffers-dev"), ("zstd.h", "libzstd-dev")):
        if not any(
            (d / name).exists()
            for d in (DEPS / "include", pathlib.Path("/usr/include"), pathlib.Path("/usr/local/include"))
        ):
            found.append(f"{name} ({where})")
    blake3 = "share/cargo/registry"
    if not any(list(d.glob("blake3-*/c/blake3.h")) for d in (DEPS / blake3, pathlib.Path("/usr") / blake3)) and not (
        pathlib.Path("/usr/include/blake3.h").exists()
    ):
        found.append("blake3.h (librust-blake3-dev)")
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        found.append("Python.h (python3-dev)")
    return found


def ensure(log: pathlib.Path) -> str:
    """Builds where that is needed; returns one line that says what was done. Throws ProbeError."""
    if importlib.util.find_spec("torch") is None:
        raise ProbeError(
            "torch is not installed for this Python: run card_probe with the Python that has torch for CUDA"
        )
    why = ready()
    if not why:
        return "step_oracle._record was here, for this torch"
    path = os.pathsep.join([str(DEPS / "bin"), str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    missing = missing_tools(path)
    if missing:
        raise ProbeError(
            f"step_oracle cannot be imported ({why}) and cannot be built: missing {', '.join(missing)}; "
            f"install them, or pack a tree with `scripts/card_probe --pack FILE.tar` where they are"
        )
    build = ROOT / "build-card"
    jobs = str(os.cpu_count() or 2)
    commands = [
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            f"-DPython3_EXECUTABLE={sys.executable}",
            "-DSTEP_ORACLE_TESTS=OFF",
            f"-DCMAKE_PREFIX_PATH={DEPS}",
        ],
        ["cmake", "--build", str(build), "--target", "_record", "--parallel", jobs],
    ]
    with open(log, "w") as f:
        for command in commands:
            done = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, env={**os.environ, "PATH": path})
            if done.returncode != 0:
                raise ProbeError(f"the build failed at `{' '.join(command[:3])} ...`: its log is {log}")
    why = ready()
    if why:
        raise ProbeError(f"step_oracle was built and still cannot be imported: {why}")
    return "step_oracle._record was built from this tree"


def pack(out: pathlib.Path) -> str:
    """The tree as git knows it, and the build's needs from this machine, as one tar file."""
    import tarfile

    if shutil.which("git") is None:
        raise ProbeError("--pack asks git which files are the tree's, and git is not installed")
    asked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    files = [f for f in asked.stdout.decode().split("\0") if f and (ROOT / f).is_file()]
    if asked.returncode != 0 or not files:
        raise ProbeError(f"--pack packs what git knows, and {ROOT} is not a clone: run it in one")
    needs: list[tuple[pathlib.Path, str]] = []
    for tool in ("flatc", "ninja"):
        found = shutil.which(tool, path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))
        if found:
            needs.append((pathlib.Path(found).resolve(), f"bin/{tool}"))
    for folder in ("/usr/include", "/usr/local/include"):
        here = pathlib.Path(folder)
        needs += [(p, f"include/{p.name}") for p in [*here.glob("zstd*.h"), here / "flatbuffers"] if p.exists()]
    for lib in (pathlib.Path("/usr/lib/x86_64-linux-gnu"), pathlib.Path("/usr/lib/aarch64-linux-gnu")):
        needs += [(p.resolve(), f"lib/{p.name}") for p in lib.glob("libzstd.so*")]
    needs += [
        (p, f"share/cargo/registry/{p.parent.name}/c")
        for p in pathlib.Path("/usr/share/cargo/registry").glob("blake3-*/c")
    ]
    with tarfile.open(out, "w:gz") as tar:
        for name in files:
            tar.add(ROOT / name, arcname=f"step-oracle/{name}")
        for path, name in needs:
            tar.add(path, arcname=f"step-oracle/.deps/usr/{name}")
    return f"{out}: {len(files)} files, {len(needs)} needs of the build, {out.stat().st_size >> 20} MB"
