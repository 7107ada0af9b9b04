"""The C++ part of the back end: compiled on first use, for the PyTorch that is installed, and kept.

PyTorch has no stable interface for back ends, so what was compiled for one version does not work with another. It is kept in
$TORCH_EXTENSIONS_DIR/annulus if that is set, else in ~/.cache/annulus/torch; ranks that start at the same time compile it once.
"""

import fcntl
import functools
import hashlib
import importlib.util
import os
import pathlib
import platform
import shutil
import sys

PACKAGE = pathlib.Path(__file__).parent
SOURCES = PACKAGE / "src"
NAME = "annulus_torch_backend"
FLAGS = ["-std=c++20", "-O2"]


def _folder(version):
    digest = hashlib.sha256(" ".join([version, platform.python_version(), str(PACKAGE), *FLAGS]).encode())
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and path.suffix in (".cc", ".h"):
            digest.update(path.read_bytes())
    home = os.environ.get("TORCH_EXTENSIONS_DIR")
    base = pathlib.Path(home, "annulus") if home else pathlib.Path.home() / ".cache" / "annulus" / "torch"
    return base / f"torch-{version}-{digest.hexdigest()[:12]}"


@functools.lru_cache(maxsize=None)
def load():
    """The extension module. RuntimeError says what is missing when it cannot be compiled."""
    import torch

    folder = _folder(torch.__version__)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "turn", "w", encoding="utf-8") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # Ends with the process, unlike the file that PyTorch uses for this.
        if not (folder / "complete").exists():
            return _compile(folder, torch.__version__)
    spec = importlib.util.spec_from_file_location(NAME, folder / f"{NAME}.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(folder, version):
    from torch.utils import cpp_extension

    missing = [tool for tool in (os.environ.get("CXX", "c++"), "ninja") if not shutil.which(tool) and not _beside_python(tool)]
    if missing:
        raise RuntimeError(
            f"Annulus is compiled for PyTorch {version} when it is first used, and {' and '.join(missing)} cannot be found. "
            "On Debian: apt-get install g++ ninja-build")
    print(f"annulus: compiling for PyTorch {version}, once, into {folder}", file=sys.stderr, flush=True)
    (folder / "lock").unlink(missing_ok=True)  # PyTorch's, left by a compilation that was killed.
    library = next(PACKAGE.glob("libannulus.so.*"))
    module = cpp_extension.load(
        name=NAME,
        sources=[str(_all_in_one(folder))],
        extra_include_paths=[str(SOURCES)],
        extra_cflags=FLAGS,
        # The old kind of path serves the library's own needs too. Some compilers link the C++ library statically. Its symbols must then not mix
        # with those of the one that PyTorch uses: numbers in messages would be lost, or worse.
        extra_ldflags=[str(library), f"-Wl,-rpath,{PACKAGE},--disable-new-dtags,--exclude-libs,libstdc++.a"],
        build_directory=str(folder),
    )
    (folder / "complete").touch()
    return module


def _all_in_one(folder):
    """A file with all sources: nearly all of the time goes into PyTorch's headers, which are then read once."""
    lines = [f'#include "{path.relative_to(SOURCES)}"\n' for path in sorted(SOURCES.rglob("*.cc"))]
    whole = folder / "all.cc"
    whole.write_text("".join(lines), encoding="utf-8")
    return whole


def _beside_python(tool):
    """Whether the tool lies where this Python does, as in a virtual environment that is not active. Then it is put on the path."""
    folder = os.path.dirname(sys.executable)
    if not os.access(os.path.join(folder, tool), os.X_OK):
        return False
    os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")
    return True
