"""The example of docs/examples/pytorch as a reader runs it: one process, and torchrun with two and four, which must all learn the same."""

import os
import pathlib
import re
import subprocess

import suite as suites

EXAMPLE = suites.HERE.parent.parent / "docs/examples/pytorch/fashion_mnist_ddp.py"
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
LEAST_ACCURACY = 0.872
# Only the order of additions differs, but a network in training makes more of that with each step.
FIRST_EPOCH, OTHER_EPOCHS = 0.001, 0.01
LINE = re.compile(r"^epoch \d+ loss (\S+) accuracy (\S+)$", re.MULTILINE)


def epochs(suite, size):
    """[(loss, accuracy)] of a run, and all that it printed."""
    launcher = [] if size == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    done = subprocess.run([suite.python, *launcher, str(EXAMPLE)], env=suite.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=suites.PATIENCE_SECONDS, check=False)
    found = [(float(loss), float(accuracy)) for loss, accuracy in LINE.findall(done.stdout)] if done.returncode == 0 else []
    return found, done.stdout


def tests(suite):
    if not os.path.isdir(DATA):
        print("the example is not run: there is no Debian package dataset-fashion-mnist", flush=True)
        return
    alone, said = epochs(suite, 1)
    suite.count("the example learns in one process", len(alone) == 5 and alone[-1][1] >= LEAST_ACCURACY, said)
    for size in (2, 4):
        curve, said = epochs(suite, size)
        follows = len(curve) == len(alone) and all(
            abs(loss - expected) <= expected * (OTHER_EPOCHS if epoch else FIRST_EPOCH)
            for epoch, ((loss, _), (expected, _)) in enumerate(zip(curve, alone)))
        suite.count(f"the example follows the curve of one process with {size}", follows, f"{alone}\n{said}")
        suite.count(f"the example learns with {size} processes", bool(curve) and curve[-1][1] >= LEAST_ACCURACY, said)
