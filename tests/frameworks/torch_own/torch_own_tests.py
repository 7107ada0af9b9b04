"""PyTorch's own tests of torch.distributed, over one back end: torch_own_tests.py BACKEND SIZE FOLDER [NAME...].

They come with PyTorch (torch.testing._internal.distributed.distributed_test). Many of them run only where the back end's name is
"gloo", and some make groups of that name. So this runs a copy, in FOLDER, in which the name is BACKEND's. Without names it runs all tests. Prints
"began NAME", then "passed NAME", "skipped NAME" or "failed NAME" and why. Each test has SIZE ranks, which are forked, and SECONDS at most.
What the tests themselves print goes to FOLDER/log.txt.
"""

import importlib
import os
import pathlib
import sys
import tempfile
import unittest

SECONDS = 90


def prepare(backend, size, folder):
    """What the tests read when they are imported."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(size), INIT_METHOD=f"file://{folder}/unused", TEMP_DIR=str(folder), MASTER_ADDR="127.0.0.1",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(SECONDS))
    tempfile.tempdir = str(folder)
    if backend != "gloo":
        from torch.distributed import Backend
        from torch.testing._internal.common_distributed import DistTestCases
        Backend._ensure_backend_registered(backend)
        for feature, backends in DistTestCases.backend_feature.items():
            if "gloo" in backends or feature == "plugin":
                backends.add(backend)


def copy(backend, folder):
    """The module of the tests, with the back end's name in place of "gloo"."""
    import torch
    source = pathlib.Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
    text = source.read_text(encoding="utf-8").replace('"gloo"', f'"{backend}"')
    if os.environ.get("TORCH_ANNULUS_FORM") != "python":
        # Where it stands, it says whose calls are looked for in profiles, too.
        text = text.replace("dist.Backend.GLOO", f"dist.Backend.{backend.upper()}")
    (folder / "own_tests.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module("own_tests")


def case_of(module):
    """The class of the tests. Its ranks are forked: PyTorch starts them anew, which takes seconds for each test."""
    import torch

    class Own(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            module.INIT_METHOD = os.environ["INIT_METHOD"]  # setUp has just made it; ranks that are started anew read it.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self):
            for process in self.processes:
                if process.exitcode is None:
                    process.kill()
                process.join(10)
            super().tearDown()

    return Own


def run(case, name, out):
    result = unittest.TestResult()
    print("began", name, file=out, flush=True)
    case(name).run(result)
    if result.skipped:
        print("skipped", name, file=out, flush=True)
    elif result.wasSuccessful():
        print("passed", name, file=out, flush=True)
    else:
        why = (result.failures + result.errors + result.unexpectedSuccesses)[0]
        print("failed", name, why[1][-4000:] if isinstance(why, tuple) else why, file=out, flush=True)


def main():
    backend, size, folder, names = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:]
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.set_inheritable(out.fileno(), False)
        prepare(backend, size, folder)
        case = case_of(copy(backend, folder))
        for name in names or unittest.TestLoader().getTestCaseNames(case):
            run(case, name, out)


if __name__ == "__main__":
    main()
