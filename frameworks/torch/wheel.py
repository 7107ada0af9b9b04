#!/usr/bin/python3
"""Writes the wheel of annulus-torch, the back end for PyTorch: bazel run //frameworks/torch:wheel -- [DIR].

The wheel has libannulus.so, the libraries that it needs, and the back end's source, which is compiled on the user's machine for the
PyTorch that is there; and a form in Python for machines without a compiler. So one wheel serves all versions of Python and PyTorch. The same
build gives the same bytes.
"""

import importlib.util
import os
import sys
import zipfile

sys.dont_write_bytecode = True
FILES = os.path.join(os.environ.get("RUNFILES_DIR") or __file__ + ".runfiles", os.environ.get("TEST_WORKSPACE", "annulus"))
TAG = "py3-none-linux_x86_64"
METADATA = """\
Metadata-Version: 2.1
Name: annulus-torch
Version: {version}
Summary: Annulus as a back end of torch.distributed
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: torch >=2.11
Requires-Dist: ninja
"""
ENTRY_POINTS = """\
[torch.distributed.backends]
annulus = annulus_torch:register
"""


def python_wheel():
    """The script of the package pyannulus, which knows how a wheel is made."""
    spec = importlib.util.spec_from_file_location("python_wheel", f"{FILES}/frameworks/python/wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FILES = FILES
    return module


def bindings():
    """Bindings to annulus.h for the form in Python."""
    sys.path.insert(0, f"{FILES}/frameworks/bindings")
    import ctypes_module
    with open(f"{FILES}/collectives/annulus.h", encoding="utf-8") as header:
        return ctypes_module.module(header.read()).encode()


def contents(common, version):
    """{path in the wheel: bytes}."""
    info = f"annulus_torch-{version}.dist-info"
    files = {f"{info}/licenses/LICENSE": common.read(f"{FILES}/LICENSE")}
    here = f"{FILES}/frameworks/torch"
    for folder in ("annulus_torch", "annulus_torch/python_form"):
        for name in os.listdir(f"{here}/{folder}"):
            if name.endswith(".py"):
                files[f"{folder}/{name}"] = common.read(f"{here}/{folder}/{name}")
    files["annulus_torch/bindings.py"] = bindings()
    for name in os.listdir(here):
        if name.endswith((".cc", ".h")):
            files[f"annulus_torch/src/frameworks/torch/{name}"] = common.read(f"{here}/{name}")
    files["annulus_torch/src/annulus.h"] = common.read(f"{FILES}/collectives/annulus.h")
    library = f"{FILES}/packaging/bare_library/libannulus.so"
    files["annulus_torch/libannulus.so." + version.split(".", maxsplit=1)[0]] = common.read(library)  # Its soname.
    for name, path in common.other_libraries(library):
        files[f"annulus_torch/{name}"] = common.read(path)
        terms, text = common.licence(path)
        files[f"{info}/licenses/{terms}"] = text
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = common.WHEEL.format(tag=TAG).encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    files[f"{info}/RECORD"] = common.record({path: (data, False) for path, data in files.items()}, info)
    return files


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    common = python_wheel()
    version = common.read(f"{FILES}/packaging/version.txt").decode().strip()
    # `bazel run` starts this in a folder of its own; a relative path means the one that its user is in.
    folder = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), *sys.argv[1:])
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.path.normpath(folder), f"annulus_torch-{version}-{TAG}.whl")
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in sorted(contents(common, version).items()):
            entry = zipfile.ZipInfo(name)  # Dated 1980, as all are: a true date would make each build differ.
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    os.replace(path + ".new", path)
    print(path)


if __name__ == "__main__":
    main()
