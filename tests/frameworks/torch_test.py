#!/usr/bin/env python3
"""The back end for PyTorch as a stranger gets it: its wheel, installed beside PyTorch, compiled there, and used by several ranks; its form in
Python; and PyTorch's own tests over it.

  torch_test.py --wheel WHEEL --python PYTHON [--driver DRIVER] [--counts FILE]

PYTHON is that of an environment with PyTorch (third_party/setup/install_torch). DRIVER is the stand-in for CUDA's driver
(//tests/cuda/fake_driver:libcuda.so.1); without it there are no tests of CUDA tensors. Prints a line for each check; FILE gets "PASSED FAILED".
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

import suite as suites
import torch_example
from torch_own import torch_own


def run_python(suite, program, **settings):
    """(status, output)."""
    done = subprocess.run([suite.python, "-c", program], env={**suite.environment, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=500, check=False)
    return done.returncode, done.stdout


def compiles(suite):
    status, output = run_python(suite, "import annulus_torch; print(annulus_torch.form())", TORCH_ANNULUS_FORM="compiled")
    suite.count("it compiles", status == 0 and output.endswith("compiled\n"), output)
    return status == 0


def forms(suite):
    """Which form is used, and that it is said."""
    program = "import annulus_torch; print(annulus_torch.form())"
    empty = {"PATH": "/nowhere", "TORCH_EXTENSIONS_DIR": str(suite.folder / "not compiled")}
    status, output = run_python(suite, program)
    suite.count("by itself it uses the compiled form, silently", (status, output) == (0, "compiled\n"), output)
    status, output = run_python(suite, program, **empty)
    said = status == 0 and output.endswith("\npython\n") and "c++" in output
    suite.count("without a compiler it uses the form in Python, and says why", said, output)
    status, output = run_python(suite, program, **empty, TORCH_ANNULUS_FORM="python")
    suite.count("the form in Python can be asked for, silently", (status, output) == (0, "python\n"), output)
    status, output = run_python(suite, program, **empty, TORCH_ANNULUS_FORM="compiled")
    suite.count("the compiled form can be insisted on", status != 0 and "c++ cannot be found" in output, output)
    status, output = run_python(suite, program, TORCH_ANNULUS_FORM="rust")
    suite.count("an unknown form is refused", status != 0 and "TORCH_ANNULUS_FORM is rust" in output, output)


def tested(suite, configurations):
    """Those whose form this PyTorch has; says so where it has not that in Python."""
    status, _ = run_python(suite, "from torch._C._distributed_c10d import Backend; Backend(0, 1)")
    if status == 0:
        return configurations
    print("the form in Python is not tested: this PyTorch is too old for it", flush=True)
    return [each for each in configurations if "compiled" in each]


def features(suite, script, size, form):
    outcomes = suite.ranks(script, size, form)
    suite.cases(script, size, [output for _, output in outcomes], f", {form}")
    suite.count(f"{script}: all {size} ranks end with status 0, {form}", all(status == 0 for status, _ in outcomes), [status for status, _ in outcomes])


def registers_nothing(suite):
    """Unless it is asked to; and what is no number is refused."""
    program = f"""import os, torch, torch.distributed as dist, annulus_torch, torch_rank
torch_rank.register_if_old()
dist.init_process_group("annulus", init_method="file://{suite.folder}/" + os.environ["STORE"], rank=0, world_size=1)
tensor = torch.zeros(1 << 22)
for _ in range(20): dist.all_reduce(tensor)
print(annulus_torch.registered())"""
    nothing = {"bytes": 0, "tensors": 0, "ever": 0, "refused": 0, "left_out": 0}
    status, output = run_python(suite, program, STORE="store1")
    suite.count("by itself it registers nothing", status == 0 and output.endswith(f"{ {'limit_bytes': 0, **nothing} }\n"), output)
    status, output = run_python(suite, program, STORE="store2", TORCH_ANNULUS_REGISTER_BYTES="1G")
    suite.count("what is no number of bytes to be registered is refused", status != 0 and "TORCH_ANNULUS_REGISTER_BYTES is 1G" in output, output)
    if tested(suite, [("python",)]):
        status, output = run_python(suite, program, STORE="store3", TORCH_ANNULUS_REGISTER_BYTES="100000000", TORCH_ANNULUS_FORM="python")
        suite.count("the form in Python registers nothing", (status, output) == (0, "None\n"), output)


def make_cuda(suite):
    """Compiles the extension that makes CUDA tensors of the stand-in for CUDA's driver. Returns whether that worked."""
    folder = suite.folder / "cuda"
    folder.mkdir()
    shutil.copy(suite.driver, folder / "libcuda.so.1")
    suite.environment["ANNULUS_TEST_CUDA"] = str(folder)
    program = f"""import ctypes
ctypes.CDLL("{folder}/libcuda.so.1")
from torch.utils import cpp_extension
cpp_extension.load(name="torch_cuda_stand_in", sources=["{suites.HERE}/torch_cuda/torch_cuda_stand_in.cc"], extra_include_paths=["{suites.HERE.parent.parent}"],
                   extra_cflags=["-O1"], extra_ldflags=["-ldl"], build_directory="{folder}")"""
    path = os.pathsep.join([str(pathlib.Path(suite.python).parent), suite.environment["PATH"]])
    status, output = run_python(suite, program, PATH=path)
    suite.count("CUDA tensors can be made of the stand-in for CUDA's driver", status == 0, output[-4000:])
    return status == 0


def cuda_tensors(suite):
    if suite.driver is None:
        print("CUDA tensors are not tested: there is no --driver", flush=True)
    elif make_cuda(suite):
        for script, size, form in tested(suite, [("torch_cuda/torch_cuda_ranks.py", 2, "compiled"), ("torch_cuda/torch_cuda_ranks.py", 3, "compiled"),
                                                 ("torch_cuda/torch_cuda_graphs.py", 2, "compiled"), ("torch_cuda/torch_cuda_graphs.py", 3, "compiled"),
                                                 ("torch_cuda/torch_cuda_refused.py", 2, "python")]):
            features(suite, script, size, form)
        for blocking in ("0", "1"):
            suite.names_the_killed(suite.ranks("torch_cuda/torch_cuda_killed.py", 3, "compiled", blocking))
        suite.names_the_killed(suite.ranks("torch_cuda/torch_cuda_graph_killed.py", 3, "compiled"))


def own_tests(suite, size, form):
    """PyTorch's own tests: those that gloo passes."""
    version, names = torch_own.read()
    found = torch_own.version_of(suite.python, suite.environment)
    if found != version:
        print(f"PyTorch's own tests are not run with {size} ranks, {form}: the list is of {version}, not of {found}", flush=True)
        return
    exempt = torch_own.exempt(form)
    wanted = [name for name in names[size] if name not in exempt]
    environment = {**suite.environment, "TORCH_ANNULUS_FORM": form}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="own-", dir=suite.folder))
    for name, (outcome, why) in torch_own.outcomes(suite.python, environment, "annulus", size, folder, wanted).items():
        suite.count(f"PyTorch's {name} with {size} ranks, {form}", outcome == "passed", f"{outcome} {why}")
    for name, why in exempt.items():
        print(f"exempt, {form}: {name}: {why}", flush=True)


def tests(suite):
    suite.environment["TORCH_EXTENSIONS_DIR"] = str(suite.folder / "compiled")
    suite.environment["TORCHINDUCTOR_CACHE_DIR"] = str(suite.folder / "inductor")  # One for all ranks: they compile the same.
    if not compiles(suite):
        return
    forms(suite)
    for size, form in tested(suite, [(2, "compiled"), (3, "compiled"), (2, "python"), (3, "mixed")]):
        for script in ("torch_ranks.py", "torch_refused.py", "torch_works.py", "torch_training.py"):
            features(suite, script, size, form)
    for size in (2, 3):
        features(suite, "torch_registered.py", size, "compiled")
    registers_nothing(suite)
    for form, *more in tested(suite, [("compiled",), ("compiled", "registered"), ("python",)]):
        suite.names_the_killed(suite.ranks("torch_killed.py", 3, form, *more))
    cuda_tensors(suite)
    torch_example.tests(suite)
    suite.on_two_hosts("torchrun on two hosts", "torch_hosts.py", suite.environment["TORCH_EXTENSIONS_DIR"])
    pinned = (suites.HERE.parent.parent / "third_party/torch/requirements.txt").read_text(encoding="utf-8")
    suite.count("the list of PyTorch's own tests is of the pinned version", f"\ntorch=={torch_own.read()[0]} " in pinned, "run torch_own.py")
    for size, form in tested(suite, [(2, "compiled"), (4, "compiled"), (2, "python")]):
        own_tests(suite, size, form)


if __name__ == "__main__":
    suites.run(tests, "torch")
