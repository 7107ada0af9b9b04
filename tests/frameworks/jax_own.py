"""Runs files of tests in the form of JAX's own for several processes (jax._src.test_multiprocess), over Annulus and over gloo.

    jax_own.py --python PYTHON --processes N FILE...

prints what gloo, JAX's own implementation for CPUs, passes and Annulus does not, and ends with status 1 if there is such a test. PYTHON is that of an
environment with JAX and pyannulus. The files may be JAX's own, which are in tests/multiprocess of its repository and in none of its packages. A test
that does not pass with the others of its file is tried again alone, since after a verdict of Annulus all collectives of a process fail.
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

FILE_SECONDS = 450
TEST_SECONDS = 120
TIMEOUT_MS = 60_000  # The time limit of a collective, so that one that waits for nobody ends before the test's time is up.

# Tests that gloo passes and XLA's collectives by MPI cannot, whatever the MPI: part of the name, and why.
EXEMPT = {
    r"_(?:gathered|summed)\d+ \('float(?:16|8_\w+)'\)":
        'XLA knows no MPI type for float16, and sends float8 as float16: "Unsupported primitive type for reduction: f16"',
}

# What each process of a test loads first: the form has no place for it, and the files stay as they are.
ENABLE = "import pyannulus.jax\npyannulus.jax.enable()\n"
# JAX's form takes port 9876 unless there is this package.
PORTPICKER = """
import socket


def pick_unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""


def exempt(name):
    """Why the test need not pass; "" where it must."""
    return next((why for part, why in EXEMPT.items() if re.search(part, name)), "")


def outcomes(python, environment, collectives, processes, path, names=(), seconds=FILE_SECONDS):
    """Runs the tests of a file, or the named ones, over "annulus" or "gloo"; {name: (outcome, log)}. A test has passed where it has on all
    processes; one that has not ended on some has the outcome "no end"."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "portpicker.py").write_text(PORTPICKER, encoding="utf-8")
        if collectives == "annulus":
            (folder / "sitecustomize.py").write_text(ENABLE, encoding="utf-8")
        search = os.pathsep.join([str(folder), *filter(None, [environment.get("PYTHONPATH")])])
        variables = {"ANNULUS_TIMEOUT_MS": str(TIMEOUT_MS), "OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": search,
                     "TEST_UNDECLARED_OUTPUTS_DIR": str(folder)}
        command = [python, str(path), f"--num_processes={processes}",
                   f"--cpu_collectives_implementation={'mpi' if collectives == 'annulus' else collectives}", *names]
        with open(folder / "out.txt", "wb") as output:
            with subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                  start_new_session=True) as running:
                try:
                    running.wait(seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(running.pid, signal.SIGKILL)  # Its processes, too.
        logs = [log.read_text(encoding="utf-8", errors="replace") for log in sorted(folder.glob("jax_*_stderr.log"))]
    return _outcomes_in(logs)


def _outcomes_in(logs):
    marks = {"[       OK ]": "passed", "[  SKIPPED ]": "skipped", "[  FAILED  ]": "failed"}
    of_each = []
    for log in logs:
        found = dict.fromkeys(re.findall(r"^\[ RUN      \] (.+)$", log, re.MULTILINE), "no end")
        for mark, name in re.findall(r"^(\[ .{8} \]) (.+)$", log, re.MULTILINE):
            found[name] = marks.get(mark, found.get(name))
        of_each.append(found)
    together = {}
    for name in sorted({name for found in of_each for name in found}):
        outcome = {found.get(name, "no end") for found in of_each}
        worst = next(each for each in ("failed", "no end", "skipped", "passed") if each in outcome)
        together[name] = (worst, "\n".join(f"--- process {number}\n{_about(name, log)}" for number, log in enumerate(logs)))
    return together


def _about(name, log):
    """What a process says of a test that failed, or else the end of what it says."""
    found = re.search(rf"^(?:FAIL|ERROR): {re.escape(name.partition('.')[2])}.*?(?=^=====|\Z)", log, re.MULTILINE | re.DOTALL)
    return found.group()[-2000:] if found else log[-1000:]


def _compare(python, processes, path):
    """How many tests of the file gloo passes and Annulus does not."""
    environment = dict(os.environ)
    wanted = {name for name, (outcome, _) in outcomes(python, environment, "gloo", processes, path).items() if outcome == "passed"}
    found = outcomes(python, environment, "annulus", processes, path)
    failed = 0
    for name in sorted(wanted):
        outcome, log = found.get(name, ("no end", ""))
        if outcome != "passed" and not exempt(name):
            alone = outcomes(python, environment, "annulus", processes, path, [name.split()[0]], TEST_SECONDS)
            outcome, log = alone.get(name, ("no end", log))
        if outcome != "passed":
            print(f"exempt {name}: {exempt(name)}" if exempt(name) else f"FAILED {name}: {outcome}\n{log}", flush=True)
        failed += outcome != "passed" and not exempt(name)
    print(f"{path} with {processes} processes: gloo passes {len(wanted)}, of which Annulus fails {failed}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    return 1 if sum([_compare(arguments.python, arguments.processes, path) for path in arguments.files]) else 0


if __name__ == "__main__":
    sys.exit(main())
