#!/usr/bin/python3
"""The Python package as a stranger gets it: the wheel is built, installed into a fresh environment without a network, and
used by ranks that annulus-run starts. python_test.py: Debian's Python, for which the wheel is made."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True

HERE = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
TESTS = os.path.join(HERE, "tests/python")
EXAMPLE = os.path.join(HERE, "docs/examples/python/logistic_regression.py")
# Nothing of the test's own surroundings shall help: no search path for modules or libraries, no settings of pip's.
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "PIP_CONFIG_FILE": "/dev/null", "PYTHONFAULTHANDLER": "1",
         "OPENBLAS_NUM_THREADS": "1", "TMPDIR": os.environ.get("TEST_TMPDIR", "/tmp")}


def run(*command, status=0, **settings):
    done = subprocess.run(command, env={**CLEAN, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    if done.returncode != status:
        raise AssertionError(f"{command}: status {done.returncode}, expected {status}\n{done.stdout}")
    return done.stdout


def header():
    with open(os.path.join(HERE, "collectives/annulus.h"), encoding="utf-8") as opened:
        return re.sub(r"/\*.*?\*/", "", opened.read(), flags=re.DOTALL)


def enumerators(name):
    """{name in lower case: number} of one of the header's enumerations."""
    body = re.search(r"typedef enum annulus_%s \{(.*?)\}" % name, header(), re.DOTALL).group(1)
    return {each.lower(): int(number) for each, number in re.findall(r"ANNULUS_(\w+) = (\d+)\b", body)}


class Python(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(cls.folder.cleanup)
        build = os.path.join(HERE, "frameworks/python/wheel")
        runfiles = {"RUNFILES_DIR": os.environ["TEST_SRCDIR"], "TEST_WORKSPACE": os.environ["TEST_WORKSPACE"]}
        cls.wheel = run(build, cls.folder.name, **runfiles).strip()
        cls.again = run(build, os.path.join(cls.folder.name, "again"), **runfiles).strip()
        venv = os.path.join(cls.folder.name, "venv")
        run("/usr/bin/python3", "-m", "venv", "--system-site-packages", venv)  # For Debian's numpy.
        cls.python = os.path.join(venv, "bin/python")
        cls.launcher = os.path.join(venv, "bin/annulus-run")
        run(cls.python, "-m", "pip", "install", "--no-index", "--no-deps", cls.wheel)

    def ranks(self, nranks, script, *arguments, status=0, **settings):
        return run(self.launcher, "-np", str(nranks), self.python, os.path.join(TESTS, script), *arguments, status=status, **settings)

    def all_pass(self, script, *arguments, numbers=(3,), **settings):
        for nranks in numbers:
            with self.subTest(nranks=nranks):
                out = self.ranks(nranks, script, *arguments, **settings)
                self.assertEqual(sorted(re.findall(r"^\[(\d)\] passed$", out, re.MULTILINE)),
                                 [str(rank) for rank in range(nranks)], out)

    def test_every_collective_gives_the_right_result(self):
        self.all_pass("collectives.py", numbers=(2, 4))
        self.ranks(1, "collectives.py")

    def test_every_collective_gives_the_right_result_over_tcp(self):
        self.ranks(3, "collectives.py", ANNULUS_TRANSPORT="tcp")

    def test_plain_arrays_take_one_step_and_others_none(self):
        self.all_pass("plain.py")
        self.ranks(1, "plain.py")
        self.ranks(2, "plain.py", ANNULUS_TRANSPORT="tcp")
        self.ranks(17, "plain.py", "unequal")

    def test_arrays_of_other_libraries_are_taken_without_copies(self):
        driver = os.path.join(HERE, "tests/cuda/fake_driver/libcuda.so.1")
        for arguments in ((), (driver,), (driver, "late")):
            self.all_pass("foreign.py", *arguments)
        self.ranks(1, "foreign.py", driver)
        self.ranks(3, "foreign.py", driver, ANNULUS_TRANSPORT="tcp")

    def test_calls_are_captured_into_graphs(self):
        driver = os.path.join(HERE, "tests/cuda/fake_driver/libcuda.so.1")
        self.all_pass("graphs.py", driver, numbers=(2, 3))
        self.ranks(1, "graphs.py", driver)
        self.ranks(2, "graphs.py", driver, ANNULUS_TRANSPORT="tcp")

    def test_mistakes_become_exceptions(self):
        self.all_pass("errors.py")

    def test_narrow_counts_and_types_that_numpy_lacks(self):
        self.all_pass("dtypes.py", numbers=(2, 3))
        self.ranks(1, "dtypes.py")

    def test_callbacks_and_reductions(self):
        self.all_pass("functions.py", numbers=(2, 3))

    def test_requests_threads_and_signals(self):
        self.all_pass("lifetimes.py")

    def test_links_are_encrypted_where_that_is_required(self):
        for encrypt in ("required", "off"):
            out = self.ranks(2, "encrypted.py", ANNULUS_TRANSPORT="tcp", ANNULUS_LOG="info", ANNULUS_ENCRYPT=encrypt)
            links = re.findall(r"^.* to rank \d, .*: tcp.*$", out, re.MULTILINE)
            self.assertGreaterEqual(len(links), 2, out)
            self.assertEqual({", encrypted" in link for link in links}, {encrypt == "required"}, out)

    def test_ranks_that_differ_in_encryption_are_told_so(self):
        for own, other in (("required", "off"), ("off", "required")):
            self.all_pass("encrypted.py", other, ANNULUS_TRANSPORT="tcp", ANNULUS_ENCRYPT=own)

    def test_a_killed_rank_is_named_to_all_others(self):
        out = self.ranks(3, "killed.py", status=137)
        self.assertEqual(sorted(re.findall(r"^\[(\d)\] passed$", out, re.MULTILINE)), ["0", "1"], out)

    def test_the_example_learns_the_same_on_any_number_of_ranks(self):
        outputs = {n: re.findall(r"(?:loss |^\[0\] )([\d.]+)(?=%|$)",
                                 run(self.launcher, "-np", str(n), self.python, EXAMPLE), re.MULTILINE)
                   for n in (1, 2, 4)}
        losses = [float(loss) for loss in outputs[1][:-1]]
        self.assertEqual(len(losses), 6)
        self.assertEqual(sorted(losses, reverse=True), losses)
        self.assertGreater(float(outputs[1][-1]), 90)
        self.assertEqual(outputs[2], outputs[1])
        self.assertEqual(outputs[4], outputs[1])

    def test_the_package_knows_all_that_the_header_has(self):
        def known(expression):
            return eval(run(self.python, "-c", f"import pyannulus; print({expression})"))  # pylint: disable=eval-used

        self.assertEqual(known("{s.name.lower(): int(s) for s in pyannulus.Status}"), enumerators("status"))
        for kind in ("Scope", "Cause"):
            defined = re.findall(rf"#define ANNULUS_{kind.upper()}_(\w+) (\d)", header())
            self.assertEqual(known(f"[(s.name, str(int(s))) for s in pyannulus.{kind}]"), defined)
        fields = re.search(r"typedef struct annulus_error \{(.*?)\}", header(), re.DOTALL).group(1)
        self.assertEqual(set(known("list(pyannulus.Error.__annotations__)")) | {"struct_bytes"},
                         set(re.findall(r"(\w+);", fields)))
        self.assertEqual(known("pyannulus._core.OPS"), enumerators("op"))
        renamed = {name.replace("float8_e4m3fn", "float8_e4m3"): number for name, number in known("pyannulus._core.TYPES").items()}
        self.assertEqual(renamed, enumerators("type"))
        fields = re.search(r"typedef struct annulus_config \{(.*?)\}", header(), re.DOTALL).group(1)
        own = {"struct_bytes", "sources", "settings", "store", "listening", "listening_context"}
        self.assertEqual(set(re.findall(r"(\w+);", fields)) - own - set(known("pyannulus._core.SETTINGS")), set())
        counters = re.search(r"typedef struct annulus_counters \{(.*?)\}", header(), re.DOTALL).group(1)
        self.assertEqual(["struct_bytes", *known("list(pyannulus.Communicator(rank=0, size=1).counters())")],
                         re.findall(r"(\w+);", counters) + ["transports"])
        transport = re.search(r"typedef struct annulus_transport_counters \{(.*?)\}", header(), re.DOTALL).group(1)
        for name in ("shm", "tcp"):
            own = known(f"list(pyannulus.Communicator(rank=0, size=1).counters()['transports']['{name}'])")
            self.assertEqual(["struct_bytes", "transport", *own], re.findall(r"(\w+);", transport))
        version = ".".join(re.findall(r"define ANNULUS_VERSION_\w+ (\d+)", header()))
        self.assertEqual(known("[pyannulus.__version__]"), [version])
        self.assertIn(f"pyannulus-{version}-cp", os.path.basename(self.wheel))

    def test_functions_and_methods_are_the_same(self):
        run(self.python, "-c", """
import pyannulus, inspect
for name in pyannulus.__all__:
    method = getattr(pyannulus.Communicator, name, None)
    if not inspect.isfunction(method):
        continue
    function = getattr(pyannulus, name)
    theirs, ours = inspect.signature(method), inspect.signature(function)
    assert list(theirs.parameters.values())[1:] == list(ours.parameters.values()) or \\
        [(p.name, p.default) for p in list(theirs.parameters.values())[1:]] == \\
        [(p.name, p.default) for p in ours.parameters.values()], name
    assert function.__doc__ or name.endswith("_async"), name
assert {n for n in dir(pyannulus.Communicator) if not n.startswith("_")} - set(pyannulus.__all__) == {
    "split", "dup", "close", "closed"}
""")

    def test_the_pages_are_true(self):
        with open(os.path.join(HERE, "docs/python.md"), encoding="utf-8") as opened:
            page = opened.read()
        for name in eval(run(self.python, "-c", "import pyannulus; print(pyannulus.__all__)")):
            self.assertRegex(page, rf"\b{name}\b")
        types = run(self.python, "-c", "import pyannulus; print(*pyannulus._core.TYPES)").split()
        self.assertEqual(sorted(re.findall(r"\b(?:[a-z]+\d+(?:_\w+)?|bool)\b", page[page.index("| dtype |"):page.index("### Requests")])),
                         sorted(types))
        with open(os.path.join(HERE, "README.md"), encoding="utf-8") as opened:
            programs = {"page": page, "readme": opened.read()}
        for name, text in programs.items():
            path = os.path.join(self.folder.name, f"{name}.py")
            with open(path, "w", encoding="utf-8") as program:
                program.write("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
            run(self.launcher, "-np", "2", self.python, path)

    def test_the_wheel_stands_alone(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            texts = [wheel.read(name) for name in names if name.endswith((".py", ".pyi", "METADATA"))]
        self.assertIn("pyannulus/py.typed", names)
        self.assertFalse([text for text in texts if HERE.encode() in text])
        with open(self.wheel, "rb") as one, open(self.again, "rb") as other:
            self.assertEqual(one.read(), other.read(), "two builds differ")
        found = run(self.python, "-c", "import pyannulus._core as c, os; print(c.__file__)").strip()
        places = dict(re.findall(r"(\S+) => (\S+)", run("ldd", found)))
        for name, place in places.items():
            own = os.path.dirname(place) == os.path.dirname(found)
            system = re.fullmatch(r"(libc|libm|libgcc_s|libstdc\+\+|libcrypto|libssl)\.so\.\d+", name)
            self.assertTrue(own or system, f"{name} comes from {place}")
        wrapper = os.path.join(os.path.dirname(found), "libannulus_mpiwrapper.so")  # For JAX (tests/frameworks).
        self.assertIn(os.path.dirname(found) + "/libannulus.so.", run("ldd", wrapper))
        exported = re.findall(r" [A-Z] (\w+)", run("nm", "-D", "--defined-only", found))
        self.assertEqual(exported, ["PyInit__core"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
