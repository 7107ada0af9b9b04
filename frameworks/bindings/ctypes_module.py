"""Writes Python bindings by ctypes from annulus.h alone.

Every function, struct, enumeration and constant of the header is in the module, under its own name. tests/abi/bindings_test.py
compares them with the compiler's.
"""

import re

from header import Header, split_commas

PLAIN = {
    "void": "None", "int": "c.c_int", "double": "c.c_double", "size_t": "c.c_size_t", "int32_t": "c.c_int32",
    "uint32_t": "c.c_uint32", "int64_t": "c.c_int64", "uint64_t": "c.c_uint64", "char": "c.c_char",
}
FUNCTION = re.compile(r"(.+) \(\*\)\((.*)\)")


def ctype(kind):
    """The ctypes expression for a C type as header.py spells it."""
    pointer = FUNCTION.fullmatch(kind)
    if pointer:
        parameters = [ctype(each.strip()) for each in pointer.group(2).split(",") if each.strip() != "void"]
        return f"c.CFUNCTYPE({', '.join([ctype(pointer.group(1))] + parameters)})"
    kind = kind.replace("const", "").replace(" ", "")
    if not kind.endswith("*"):
        return PLAIN.get(kind, kind)
    target = kind[:-1]
    if target == "char":
        return "c.c_char_p"
    return "c.c_void_p" if target == "void" else f"c.POINTER({ctype(target)})"


def module(header_text):
    """The text of the module."""
    header = Header(header_text)
    lines = ["import ctypes as c", ""]
    lines += [f"{name} = {value}" for name, value in
              re.findall(r"^#define (ANNULUS_\w+) +\(?(-?\w+)\)?", header_text, re.MULTILINE) if value.lstrip("-").isdigit()]
    for name, _ in header.enums:
        body = re.search(r"\{([^}]*)\} %s;" % name, re.sub(r"/\*.*?\*/", "", header_text, flags=re.DOTALL)).group(1)
        lines += [f"{name} = c.c_int"] + [f"{each} = {number}" for each, number in re.findall(r"(\w+) = (\w+)", body)]
    opaque = [line for line in header.lines if re.match(r"type \w+: struct", line)]
    lines += [f"class {re.match(r'type (.*?):', line).group(1)}(c.Structure): pass" for line in opaque]
    callbacks = [re.match(r"type (\w+): (.*)", line).groups() for line in header.lines if line.startswith("type ") and line not in opaque]
    lines += [f"{name} = {ctype(kind)}" for name, kind in callbacks]
    for name, fields in header.structs:
        members = ", ".join(f'("{field}", {ctype(kind)})' for field, kind in fields)
        lines.append(f"class {name}(c.Structure): _fields_ = [{members}]")
    lines += ["", "def load(path):", "    library = c.CDLL(path)"]
    for line in header.lines:
        function = re.match(r"function (\w+): (\S.*?) \((.*)\)$", line)
        if function:
            name, returned, parameters = function.groups()
            kinds = [ctype(kind) for kind in split_commas(parameters) if kind != "void"]
            lines.append(f"    library.{name}.restype, library.{name}.argtypes = {ctype(returned)}, [{', '.join(kinds)}]")
    return "\n".join(lines + ["    return library", ""])
