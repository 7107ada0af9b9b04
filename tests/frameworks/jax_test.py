#!/usr/bin/env python3
"""JAX over Annulus as a stranger gets it: the wheel of annulus, installed beside an unmodified JAX, and used by several processes.

  jax_test.py --wheel WHEEL --python PYTHON [--counts FILE]

PYTHON is that of an environment with JAX (third_party/setup/install_jax). Prints a line for each check; FILE gets "PASSED FAILED".
"""

import pathlib
import re
import socket
import subprocess

import suite as suites

DOCUMENT = pathlib.Path(__file__).parent.parent.parent / "docs/jax.md"


def free_port():
    """For JAX's own service, which cannot choose one. Another process may get it in between: then the test says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launched(suite, size, *command, **settings):
    """(status, [output of each rank]) of a program that annulus-run starts."""
    done = subprocess.run([str(suite.site / "bin/annulus-run"), "-np", str(size), suite.python, *map(str, command)],
                          env={**suite.environment, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=suites.PATIENCE_SECONDS, check=False)
    outputs = ["".join(re.findall(rf"^\[{rank}\] (.*\n)", done.stdout, re.MULTILINE)) for rank in range(size)]
    return done.returncode, outputs


def features(suite, size, by_launcher):
    if by_launcher:
        status, outputs = launched(suite, size, suites.HERE / "jax_ranks.py")
        fine = status == 0
    else:
        outcomes = suite.ranks("jax_ranks.py", size, free_port())
        status, outputs = [each for each, _ in outcomes], [output for _, output in outcomes]
        fine = set(status) == {0}
    suite.cases("jax_ranks.py", size, outputs)
    suite.count(f"all {size} ranks end with status 0", fine, status)


def refuses(suite, what, expected, *arguments):
    """Both of two ranks print an error with that text."""
    status, outputs = launched(suite, 2, suites.HERE / "jax_refused.py", what, *arguments)
    ok = status == 0 and all(re.search(rf"^error: .*{expected}", output, re.MULTILINE) for output in outputs)
    suite.count(f"refused: {what} {'without annulus.jax' if arguments else ''}", ok, f"{status} {outputs}")


def the_page_is_true(suite):
    """Its programs run as they stand there."""
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)):
        path = suite.folder / f"page{number}.py"
        path.write_text(text, encoding="utf-8")
        settings = {"COORDINATOR": f"127.0.0.1:{free_port()}"}
        status, outputs = launched(suite, 2, path, **settings)
        suite.count(f"program {number} of docs/jax.md", status == 0, f"{status} {outputs}")


def tests(suite):
    features(suite, 2, by_launcher=True)
    features(suite, 3, by_launcher=False)
    features(suite, 4, by_launcher=True)
    features(suite, 8, by_launcher=True)
    suite.names_the_killed(suite.ranks("jax_killed.py", 3, free_port()))
    refuses(suite, "late", "too late")
    refuses(suite, "alone", "rank .ANNULUS_RANK. is not known")
    refuses(suite, "devices", "2 CPU devices")
    refuses(suite, "devices", "each process must have one device", free_port())
    the_page_is_true(suite)


if __name__ == "__main__":
    suites.run(tests, "jax")
