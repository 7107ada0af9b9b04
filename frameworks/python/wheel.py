#!/usr/bin/python3
"""Writes the wheel of pyannulus: bazel run //frameworks/python:wheel -- [DIR].

The wheel has the package, libannulus.so, those libraries of Debian that it needs and that Python and numpy do not bring
along, and annulus-run. It is for the Python that runs this script (Debian's, whose headers the build uses), on systems with
the C library of the machine that builds it, or a newer one. The same build gives the same bytes.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile

FILES = os.path.join(os.environ.get("RUNFILES_DIR") or __file__ + ".runfiles", os.environ.get("TEST_WORKSPACE", "annulus"))
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
TAG = f"{PYTHON}-{PYTHON}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
# What every Python with numpy has: the C and C++ libraries, and OpenSSL, whose fixes shall come from the system.
OF_THE_SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libgcc_s|libstdc\+\+|libcrypto|libssl)\.so[.\d]*")
METADATA = """\
Metadata-Version: 2.1
Name: pyannulus
Version: {version}
Summary: Ring collectives for data-parallel training, for numpy arrays without a copy
License: Apache-2.0
Requires-Python: =={python}.*
Requires-Dist: numpy
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: annulus
Root-Is-Purelib: false
Tag: {tag}
"""


def read(path):
    with open(path, "rb") as opened:
        return opened.read()


def other_libraries(library):
    """Yields (name, path) of the shared libraries that `library` needs and that not every system has."""
    listing = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        name, _, found = line.strip().partition(" => ")
        name, path = os.path.basename(name.split(" (")[0]), found.split(" (")[0]
        if OF_THE_SYSTEM.fullmatch(name):
            continue
        if not os.path.isfile(path):
            sys.exit(f"wheel: {library} needs {name}, which is not on this machine")
        yield name, path


def licence(path):
    """(name, text) of the licence of a library that came with a Debian package."""
    # Its place on the package's list may be one that /lib, a link to /usr/lib, hides.
    real = os.path.realpath(path)
    for place in (real, real.removeprefix("/usr")):
        found = subprocess.run(["dpkg-query", "-S", place], capture_output=True, text=True)
        if found.returncode == 0:
            package = found.stdout.split(":")[0]
            return f"{package}.txt", read(f"/usr/share/doc/{package}/copyright")
    sys.exit(f"wheel: {path} is of no Debian package, so its licence is not known")


def contents(version):
    """{path in the wheel: (bytes, whether it is a program)}."""
    info = f"pyannulus-{version}.dist-info"
    files = {f"{info}/licenses/LICENSE": read(f"{FILES}/LICENSE")}
    package = f"{FILES}/frameworks/python/pyannulus"
    for name in os.listdir(package):
        if name.endswith((".py", ".pyi", ".typed")):
            files[f"pyannulus/{name}"] = read(f"{package}/{name}")
    files["pyannulus/_core" + sysconfig.get_config_var("EXT_SUFFIX")] = read(f"{FILES}/frameworks/python/bare_core/_core.so")
    files["pyannulus/libannulus_mpiwrapper.so"] = read(f"{FILES}/frameworks/mpi/bare_wrapper/libannulus_mpiwrapper.so")
    library = f"{FILES}/packaging/bare_library/libannulus.so"
    files["pyannulus/libannulus.so." + version.split(".")[0]] = read(library)  # Its soname.
    for name, path in other_libraries(library):
        files[f"pyannulus/{name}"] = read(path)
        terms, text = licence(path)
        files[f"{info}/licenses/{terms}"] = text
    programs = {f"pyannulus-{version}.data/scripts/annulus-run": read(f"{FILES}/packaging/bare_launcher/annulus-run")}
    files[f"{info}/METADATA"] = METADATA.format(version=version, python=".".join(map(str, sys.version_info[:2]))).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=TAG).encode()
    listed = {path: (data, False) for path, data in files.items()} | {path: (data, True) for path, data in programs.items()}
    listed[f"{info}/RECORD"] = (record(listed, info), False)
    return listed


def record(files, info):
    lines = []
    for path, (data, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{info}/RECORD,,\n"]).encode()


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    version = read(f"{FILES}/packaging/version.txt").decode().strip()
    # `bazel run` starts this in a folder of its own; a relative path means the one that its user is in.
    folder = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), *sys.argv[1:])
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.path.normpath(folder), f"pyannulus-{version}-{TAG}.whl")
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, (data, program) in sorted(contents(version).items()):
            entry = zipfile.ZipInfo(name)  # Dated 1980, as all are: a true date would make each build differ.
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    os.replace(path + ".new", path)
    print(path)


if __name__ == "__main__":
    main()
