#!/usr/bin/env python3
"""Makes stand-ins for the CUDA libraries that PyTorch's wheel asks for when it is imported, so that its CPU part runs without them.

  torch_stubs.py SITE_PACKAGES

Each of them gets one of its name, with the symbols that PyTorch looks for as functions that return an error. It lies where the
wheel's own search path leads: SITE_PACKAGES/nvidia/cu13/lib. Takes readelf and a C compiler.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

CUDA = r"(lib)?(cu|nv|nccl)"  # The names of its libraries and functions begin so.
ERROR = 35  # cudaErrorInsufficientDriver; a failure for all of these libraries.


def readelf(option, library):
    return subprocess.run(["readelf", "-W", option, library], check=True, capture_output=True, text=True).stdout


def needed_of(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library))


def symbols_of(library):
    """(undefined, defined): names, with their version where there is one. What is only weakly wanted is left out."""
    undefined, defined = set(), set()
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(":"):
            continue
        name, bind, section = fields[7], fields[4], fields[6]
        if section != "UND":
            defined.add(name.split("@")[0])
        elif bind == "GLOBAL":
            undefined.add(name)
    return undefined, defined


def files_of_versions(library):
    """Which file each version is wanted from."""
    versions, file = {}, ""
    for line in readelf("-V", library).splitlines():
        match = re.search(r"File: (\S+)", line)
        file = match.group(1) if match else file
        match = re.search(r"Name: (\S+)", line)
        if match and file:
            versions[match.group(1)] = file
    return versions


def source_of(names):
    lines = []
    for name in sorted(names):
        if "String" in name or "Name" in name:
            lines.append(f'const char* {name}(void) {{ return "a stand-in for CUDA, which is not installed"; }}')
        else:
            lines.append(f"int {name}(void) {{ return {ERROR}; }}")
    return "\n".join(lines) + "\n"


def make_stub(folder, library, versions):
    """`versions`: the names by version; "" has those without."""
    with tempfile.TemporaryDirectory() as scratch:
        code, script = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "stub.map")
        code.write_text(source_of(set().union(*versions.values())), encoding="utf-8")
        nodes = [f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in versions.items() if version and names]
        script.write_text("\n".join(nodes) + "\n", encoding="utf-8")
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", str(code), "-o", str(folder / library)]
        subprocess.run(command + ([f"-Wl,--version-script={script}"] if nodes else []), check=True)


def main():
    site = pathlib.Path(sys.argv[1])
    libraries = sorted((site / "torch" / "lib").glob("*.so*"))
    folder = site / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    own = {library.name for library in libraries}
    absent, wanted, has = {}, {}, set()
    for library in libraries:
        for name in needed_of(library):
            if name not in own and re.match(CUDA, name):
                absent.setdefault(name, {"": set()})
        undefined, defined = symbols_of(library)
        has |= defined
        versions = files_of_versions(library)
        for symbol in undefined:
            name, _, version = symbol.partition("@")
            wanted[name] = (version, versions.get(version))
    for name, (version, file) in wanted.items():
        if version and file in absent:
            absent[file].setdefault(version, set()).add(name)
        elif not version and name not in has and re.match(CUDA, name):
            for stub in absent.values():  # Nothing tells from which library.
                stub[""].add(name)
    for library, versions in absent.items():
        make_stub(folder, library, versions)
    print(f"{len(absent)} stand-ins for CUDA's libraries in {folder}")


if __name__ == "__main__":
    main()
