"""Builds the extension modules with CMake, which lists every source. Everything else is in pyproject.toml."""

import os
import pathlib
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Builds in build/; an editable install uses the modules in step_oracle/, a wheel gets its own copy."""

    def run(self) -> None:
        build = ROOT / os.environ.get("STEP_ORACLE_BUILD_DIR", "build")
        tests = "ON" if os.environ.get("STEP_ORACLE_TESTS") == "1" else "OFF"
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}",
             f"-DSTEP_ORACLE_TESTS={tests}"], check=True)
        subprocess.run(["cmake", "--build", build], check=True)
        if not self.inplace and not self.editable_mode:
            prefix = pathlib.Path(self.build_lib).resolve()
            subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True)

    def get_outputs(self) -> list[str]:
        return []


setup(ext_modules=[Extension("step_oracle._record", []), Extension("step_oracle._oracle", []),
                   Extension("step_oracle._host", [])],
      cmdclass={"build_ext": CMakeBuild})
