#!/usr/bin/env python3
"""JAX over Annulus as a stranger gets it: the wheel of pyannulus, installed beside an unmodified JAX, and used by several processes.

  jax_test.py --wheel WHEEL --python PYTHON [--counts FILE]

PYTHON is that of an environment with JAX (third_party/setup/install_jax). Prints a line for each check; FILE gets "PASSED FAILED".
"""

import pathlib
import re
import socket
import tempfile

import jax_own
import suite as suites

DOCUMENT = pathlib.Path(__file__).parent.parent.parent / "docs/jax.md"


def free_port():
    """For JAX's own service, which cannot choose one. Another process may get it in between: then the test says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def features(suite, size, by_launcher):
    if by_launcher:
        status, outputs = suite.launched(size, suites.HERE / "jax_ranks.py")
        fine = status == 0
    else:
        outcomes = suite.ranks("jax_ranks.py", size, f"127.0.0.1:{free_port()}")
        status, outputs = [each for each, _ in outcomes], [output for _, output in outcomes]
        fine = set(status) == {0}
    suite.cases("jax_ranks.py", size, outputs)
    suite.count(f"all {size} ranks end with status 0", fine, status)


def form_of_jax(suite, size):
    """What gloo passes of jax_form.py, Annulus passes too, but for what is exempt."""
    path = suites.HERE / "jax_form.py"
    found = jax_own.outcomes(suite.python, suite.environment, "annulus", size, path)
    suite.count(f"jax_form.py has tests with {size} processes", len(found) > 1, found)
    for name, (outcome, log) in found.items():
        why = jax_own.exempt(name)
        suite.count(f"{name} with {size} processes{', exempt' if why else ''}", outcome == ("failed" if why else "passed"),
                    f"{outcome}, {'though docs/jax.md says that it fails' if why else log}")
    if size == 2:
        of_gloo = jax_own.outcomes(suite.python, suite.environment, "gloo", size, path)
        others = [f"{name}: {outcome} {log}" for name, (outcome, log) in of_gloo.items() if outcome != "passed"]
        suite.count("gloo passes all of jax_form.py", of_gloo.keys() == found.keys() and not others, "\n".join(others))


def says(suite, name, expected, *arguments):
    """Both of two ranks print a line of that form."""
    status, outputs = suite.launched(2, suites.HERE / "jax_refused.py", tempfile.mkdtemp(dir=suite.folder), *arguments)
    suite.count(name, status == 0 and all(re.search(f"^{expected}", output, re.MULTILINE) for output in outputs), f"{status} {outputs}")


def ends(suite, name, case, *expected):
    """Rank by rank: a line that jax_ends.py prints; all end with status 0 but a rank whose line is None."""
    outcomes = suite.ranks("jax_ends.py", len(expected), free_port(), case)
    suite.count(name, all((status == 0) == (line is not None) and re.search(f"^{line or ''}", output, re.MULTILINE)
                          for (status, output), line in zip(outcomes, expected)), outcomes)


def keras_trains_alike(suite):
    """The same losses with 1, 2 and 4 processes."""
    losses = {}
    for size in (1, 2, 4):
        status, outputs = suite.launched(size, suites.HERE / "jax_keras.py")
        found = [re.findall(r"^losses (.*)$", output, re.MULTILINE) for output in outputs]
        losses[size] = [[float(loss) for loss in line.split()] for lines in found for line in lines]
        suite.count(f"Keras trains with {size} ranks", status == 0 and len(losses[size]) == size and all(
            abs(loss - first) < 1e-3 for line in losses[size] for loss, first in zip(line, losses[1][0])), f"{status} {outputs}")


def the_page_is_true(suite):
    """Its programs run as they stand there."""
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)):
        path = suite.folder / f"page{number}.py"
        path.write_text(text, encoding="utf-8")
        settings = {"COORDINATOR": f"127.0.0.1:{free_port()}"}
        status, outputs = suite.launched(2, path, **settings)
        suite.count(f"program {number} of docs/jax.md", status == 0, f"{status} {outputs}")


def tests(suite):
    features(suite, 2, by_launcher=True)
    suite.environment["ANNULUS_TRANSPORT"] = "tcp"
    features(suite, 3, by_launcher=False)
    del suite.environment["ANNULUS_TRANSPORT"]
    features(suite, 4, by_launcher=True)
    features(suite, 8, by_launcher=True)
    suite.names_the_killed(suite.ranks("jax_killed.py", 3, free_port()))
    says(suite, "enable after JAX is refused", "error: .*too late", "late")
    says(suite, "initialize without a launcher is refused", "error: .*rank .ANNULUS_RANK. is not known", "alone")
    says(suite, "two devices are refused", "error: .*2 CPU devices", "devices", 2)
    says(suite, "two devices are refused without pyannulus.jax", "error: .*each process must have one device", "devices", 2, free_port())
    says(suite, "the library works without pyannulus.jax", r"no error: .*2\.", "devices", 1, free_port())
    says(suite, "a failed world has no rank 0, which copies its own part", "error: .*ANNULUS_CHANNELS", "permute")
    for case in ("kept", "dropped", "mesh"):
        ends(suite, f"queued work is done before a process leaves: {case}", case, "result 1.0", "end", "end")
    ends(suite, "an exception that ends a program is told to others", "raised", "error: .*rank 1.*its program ended by an exception, RuntimeError", None)
    ends(suite, "Ctrl-C ends the wait for work at a program's end", "impatient", "error: .*rank 1.*wait for its work was interrupted", "end")
    ends(suite, "Ctrl-C ends the meeting of the processes", "interrupted", "end", "interrupted")
    form_of_jax(suite, 2)
    form_of_jax(suite, 4)
    suite.on_two_hosts("JAX on two hosts", "jax_hosts.py")
    keras_trains_alike(suite)
    the_page_is_true(suite)


if __name__ == "__main__":
    suites.run(tests, "jax")
