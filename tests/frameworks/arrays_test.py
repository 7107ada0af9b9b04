#!/usr/bin/env python3
"""Arrays of a framework in calls of pyannulus: its wheel, installed beside PyTorch or JAX, and used by several processes.

  arrays_test.py --wheel WHEEL --python PYTHON [--counts FILE]

PYTHON is that of an environment with PyTorch or JAX (third_party/setup/install_torch, install_jax). Prints a line for each check; FILE
gets "PASSED FAILED".
"""

import subprocess

import suite as suites


def tests(suite):
    has_torch = subprocess.run([suite.python, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    script = "arrays_torch.py" if has_torch else "arrays_jax.py"
    for size in (2, 3):
        status, outputs = suite.launched(size, suites.HERE / script, JAX_PLATFORMS="cpu")
        suite.cases(script, size, outputs)
        suite.count(f"all {size} ranks end with status 0", status == 0, f"{status} {outputs}")


if __name__ == "__main__":
    suites.run(tests, "arrays")
