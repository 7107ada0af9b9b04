#!/usr/bin/env python3
"""The back end for PyTorch as a stranger gets it: its wheel, installed beside PyTorch, compiled there, and used by several ranks.

  torch_test.py --wheel WHEEL --python PYTHON [--counts FILE]

PYTHON is that of an environment with PyTorch (third_party/setup/install_torch). Prints a line for each check; FILE gets "PASSED FAILED".
"""

import subprocess

import suite as suites


def compiles(suite):
    done = subprocess.run([suite.python, "-c", "from annulus_torch import native; print(native.load().version())"], env=suite.environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False)
    suite.count("it compiles", done.returncode == 0, done.stdout)
    return done.returncode == 0


def features(suite, size):
    outcomes = suite.ranks("torch_ranks.py", size)
    suite.cases("torch_ranks.py", size, [output for _, output in outcomes])
    suite.count(f"all {size} ranks end with status 0", all(status == 0 for status, _ in outcomes), [status for status, _ in outcomes])


def tests(suite):
    suite.environment["TORCH_EXTENSIONS_DIR"] = str(suite.folder / "compiled")
    if compiles(suite):
        features(suite, 2)
        features(suite, 3)
        suite.names_the_killed(suite.ranks("torch_killed.py", 3))


if __name__ == "__main__":
    suites.run(tests, "torch")
