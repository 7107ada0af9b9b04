#!/usr/bin/env python3
"""Compiles the back end for PyTorch and the extension of pyannulus in the folder that `pack` made, for the Python that runs this: build.py [--if-needed | --ahead]

--if-needed: does nothing where that has been done, and takes what `pack` compiled ahead if it is for the same versions. --ahead: compiles into the
folder `ahead`, for a machine with the same versions of Python and PyTorch."""

import concurrent.futures
import importlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import time

HERE = pathlib.Path(__file__).resolve().parent.parent
SITE, SOURCES, AHEAD = HERE / "site", HERE / "src", HERE / "ahead"
CORE = "_core" + sysconfig.get_config_var("EXT_SUFFIX")


def versions():
    import torch
    return f"{sysconfig.get_config_var('SOABI')} {platform.libc_ver()[0]} torch {torch.__version__}"


def pybind11():
    try:
        return importlib.import_module("pybind11").get_include()
    except ImportError:
        import torch
        return os.path.join(os.path.dirname(torch.__file__), "include")  # It has a copy.


def compile_python():
    """The extension of pyannulus, into its package."""
    begin, compiler = time.monotonic(), os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", f"-I{SOURCES}", f"-I{pybind11()}", f"-I{sysconfig.get_paths()['include']}"]
    objects = HERE / "objects"
    objects.mkdir(exist_ok=True)

    def compiled(source):
        target = objects / (source.stem + ".o")
        subprocess.run([compiler, *flags, "-c", str(source), "-o", str(target)], check=True)
        return str(target)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(compiled, sorted((SOURCES / "frameworks/python").glob("*.cc"))))
    library = next((SITE / "pyannulus").glob("libannulus.so.*"))
    new = SITE / "pyannulus" / (CORE + ".new")
    subprocess.run([compiler, "-shared", *parts, f"-Wl,--version-script={SOURCES}/frameworks/python/core.map", str(library),
                    "-Wl,-rpath,$ORIGIN,--disable-new-dtags", "-ldl", "-o", str(new)], check=True)
    os.replace(new, SITE / "pyannulus" / CORE)
    return time.monotonic() - begin


def compile_torch():
    """The back end for PyTorch, to where its package keeps it."""
    begin = time.monotonic()
    environment = {**os.environ, "TORCH_ANNULUS_FORM": "compiled"}
    subprocess.run([sys.executable, "-c", "import annulus_torch; annulus_torch.form()"], check=True, env=environment)
    return time.monotonic() - begin


def torch_folder():
    import torch
    from annulus_torch import native
    return native._folder(torch.__version__), native.NAME + ".so"


def build():
    folder, _ = torch_folder()
    shutil.rmtree(folder, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, work in [(name, pool.submit(work)) for name, work in (("pyannulus", compile_python), ("annulus_torch", compile_torch))]:
            print(f"compiled {name} in {work.result():.1f} s, beside the other", flush=True)


def keep_ahead():
    folder, name = torch_folder()
    AHEAD.mkdir(exist_ok=True)
    shutil.copy(folder / name, AHEAD / name)
    shutil.move(SITE / "pyannulus" / CORE, AHEAD / CORE)
    shutil.rmtree(folder)
    shutil.rmtree(HERE / "objects")
    (AHEAD / "versions").write_text(versions(), encoding="utf-8")


def take_ahead():
    """Whether what was compiled ahead fits; it is then put in place."""
    found = (AHEAD / "versions").read_text(encoding="utf-8") if AHEAD.exists() else "nothing"
    if found != versions():
        print(f"compiled ahead is {found}; here is {versions()}", flush=True)
        return False
    folder, name = torch_folder()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(AHEAD / name, folder / name)
    shutil.copy(AHEAD / CORE, SITE / "pyannulus" / CORE)
    (folder / "complete").touch()
    print(f"taken as it was compiled ahead: {found}", flush=True)
    return True


def main():
    if sys.argv[1:] == ["--if-needed"]:
        folder, _ = torch_folder()
        if not ((folder / "complete").exists() and (SITE / "pyannulus" / CORE).exists()) and not take_ahead():
            build()
    else:
        build()
        if sys.argv[1:] == ["--ahead"]:
            keep_ahead()


if __name__ == "__main__":
    main()
