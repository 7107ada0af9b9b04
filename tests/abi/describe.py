"""The binary interface of a C header and its shared library, as text: one item to a line, sorted.

The header gives names and types, a small C program that the compiler builds from them gives numbers, sizes and offsets,
and the library gives its soname and symbols. Names of parameters are left out: they bind nobody.
"""

import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../frameworks/bindings"))

from header import Header, NotUnderstood  # noqa: E402,F401

VERSION = re.compile(r"^#define ANNULUS_VERSION_(MAJOR|MINOR|PATCH) (\d+)$", re.MULTILINE)


def read_version(text):
    """The header's version as three numbers."""
    numbers = {name: int(value) for name, value in VERSION.findall(text)}
    return numbers["MAJOR"], numbers["MINOR"], numbers["PATCH"]


def program_of(header):
    """A C program that prints the lines that only a compiler knows."""
    asked = []
    for name in header.constants:
        asked.append(f'printf("constant {name} = %lld\\n", (long long)({name}));')
    for name, constants in header.enums:
        asked.append(f'printf("enum {name}: %zu bytes\\n", sizeof({name}));')
        for constant in constants:
            asked.append(f'printf("enum {name}.{constant} = %lld\\n", (long long){constant});')
    for name, fields in header.structs:
        grows = ", grows" if fields[0][0] == "struct_bytes" else ""
        asked.append(f'printf("struct {name}: %zu bytes{grows}\\n", sizeof({name}));')
        for field, kind in fields:
            place = f"offsetof({name}, {field}), sizeof((({name}*)0)->{field})"
            asked.append(f'printf("field {name}.{field}: {kind}, %zu + %zu\\n", {place});')
    body = "\n  ".join(asked)
    return f"#include <annulus.h>\n#include <stddef.h>\n#include <stdio.h>\n\nint main(void) {{\n  {body}\n  return 0;\n}}\n"


def output(*command):
    return subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout


def compiled_lines(header, folder):
    """Builds and runs the header's program."""
    with tempfile.TemporaryDirectory() as scratch:
        source, program = os.path.join(scratch, "abi.c"), os.path.join(scratch, "abi")
        with open(source, "w", encoding="utf-8") as file:
            file.write(program_of(header))
        output("cc", "-std=c99", "-Werror", f"-I{folder}", source, "-o", program)
        return output(program).splitlines()


def library_lines(library):
    lines = [f"soname {name}" for name in re.findall(r"\(SONAME\).*\[(.*)\]", output("readelf", "-d", library))]
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        _, kind, name = line.split()
        if kind in "BCDGRSTVWui":  # Seen from outside; A is the name of the version itself.
            lines.append(f"symbol {name}")
    return lines


FIELD = re.compile(r"field (\w+)\.(\w+): .*, (\d+) \+ (\d+)")
SIZE = re.compile(r"struct (\w+): (\d+) bytes")


def holes(lines):
    """Holes and tail padding in the structs: a field that is put there later would change no size."""
    ends, sizes, found = {}, {}, []
    for line in lines:
        if match := SIZE.match(line):
            sizes[match.group(1)] = int(match.group(2))
    fields = [match.groups() for match in map(FIELD.fullmatch, lines) if match]
    for struct, name, offset, size in sorted(fields, key=lambda field: (field[0], int(field[2]))):
        if int(offset) != ends.get(struct, 0):
            found.append(f"{struct} has a hole before {name}, at byte {ends.get(struct, 0)}")
        ends[struct] = int(offset) + int(size)
    found.extend(f"{struct} has padding at its end, from byte {end}" for struct, end in ends.items() if end != sizes[struct])
    return found


def describe(header_path, library):
    """(version, lines) of the interface."""
    with open(header_path, encoding="utf-8") as file:
        text = file.read()
    header = Header(text)
    lines = header.lines + compiled_lines(header, os.path.dirname(os.path.abspath(header_path))) + library_lines(library)
    return read_version(text), sorted(lines)
