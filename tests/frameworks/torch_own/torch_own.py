"""Which of PyTorch's own tests the back end has to pass: those that gloo, PyTorch's own back end for CPUs, passes on the same machine.

    torch_own.py --python PYTHON      runs them all over gloo, and writes the list again: after a change of PyTorch's version
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
LIST = HERE / "torch_own_list.txt"
SIZES = (2, 4)
PATIENCE_SECONDS = 1800  # For all tests of a size. They take some minutes.

# Tests that gloo passes and no back end from outside PyTorch can, and the line of PyTorch that is why.
EXEMPT = {
    "test_ddp_logging_data_cpu": 'wants the name of the back end in a log, but all from outside are logged as "custom": '
                                 "`return backendTypeToString(backendType_);` in ProcessGroup.hpp",
}
# The same for a back end in Python, whose works PyTorch wraps in one that passes on only `wait` and `getFuture`:
# `return c10::make_intrusive<PyProcessGroup::PyWorkHolder>(std::move(o));` in PyProcessGroup.hpp.
EXEMPT_IN_PYTHON = {
    **EXEMPT,
    **{name: "asks a work whether it is done" for name in ("test_irecv", "test_isend", "test_isend_autograd_profiler", "test_isend_torch_profiler")},
    **{name: "asks a work who sent the message" for name in
       ("test_send_recv_any_source", "test_send_recv_any_source_autograd_profiler", "test_send_recv_any_source_torch_profiler")},
}


def exempt(form):
    return EXEMPT_IN_PYTHON if form == "python" else EXEMPT


def read():
    """(PyTorch's version, {size: names that gloo passes})."""
    version, names = "", {size: [] for size in SIZES}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if line.startswith("torch "):
            version = words[1]
        elif words and not line.startswith("#"):
            for size in words[1:]:
                names[int(size)].append(words[0])
    return version, names


def outcomes(python, environment, backend, size, folder, names=()):
    """Runs the tests; {name: (outcome, why)}. A test that has not ended, or not begun, has the outcome "no end"."""
    command = [python, str(HERE / "torch_own_tests.py"), backend, str(size), str(folder), *names]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
                          start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # Its ranks, too: they hold the pipe.
            output, _ = process.communicate()
    log = (pathlib.Path(folder) / "log.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
    found = {name: ("no end", log) for name in names}
    lines = r"^(began|passed|skipped|failed) (test_\w+)(.*?)(?=^(?:began|passed|skipped|failed) test_|\Z)"
    for outcome, name, why in re.findall(lines, output, re.MULTILINE | re.DOTALL):
        found[name] = ("no end", log) if outcome == "began" else (outcome, why.strip())
    return found


def version_of(python, environment):
    return subprocess.run([python, "-c", "import torch; print(torch.__version__.split('+')[0])"], env=environment, check=True, stdout=subprocess.PIPE,
                          text=True).stdout.strip()


def write(python):
    passed = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            for name, (outcome, why) in outcomes(python, None, "gloo", size, folder).items():
                if outcome == "passed":
                    passed.setdefault(name, []).append(str(size))
                elif outcome != "skipped":
                    print(outcome, name, f"with {size} ranks", why[-1000:])
    lines = ["# PyTorch's own tests that gloo passes, each with the numbers of ranks. Written by torch_own.py.", f"torch {version_of(python, None)}"]
    lines += [f"{name} {' '.join(sizes)}" for name, sizes in sorted(passed.items())]
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    sys.exit(write(parser.parse_args().python))
