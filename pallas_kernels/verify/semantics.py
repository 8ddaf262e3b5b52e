"""Semantics layer: the tests of the kernels, slow ones too, which lie beside the package."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests" / "pallas_kernels"


def run(quick: bool) -> tuple[str, str]:
    """Run them in a process of their own on the CPU; the verdict and its reason."""
    if not TESTS.is_dir():
        return "skipped", "the tests are in the repository, not in an installed package"
    if importlib.util.find_spec("pytest") is None:
        return "skipped", "no pytest here; pip install 'cbjax[test]'"
    command = [sys.executable, "-m", "pytest", "-q", str(TESTS)]
    command += [] if quick else ["-m", "slow or not slow"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=TESTS.parents[1], env=environment)
    return ("failed" if done.returncode else "ok"), " ".join(["pytest", *command[4:]])
