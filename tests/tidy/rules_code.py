"""House rules over C++, Python, shell and BUILD files. A rule yields (line, what to do) for each violation."""

import ast
import os
import re

import rules_rooms
from source import classes, functions, includes, namespace_types

MOST_FILE_LINES = 400
LONGER_FILES = {"collectives/annulus.h": 760}  # Users include one header.
MOST_FUNCTION_LINES = 70
MOST_DATA_MEMBERS = 15

# Arrows point down: a layer includes itself and what stands before it.
LAYERS = {
    "base": 0,
    "cuda_kernels": 1,
    "transport": 2,
    "collectives": 3,
    "launcher": 4,
    "bench": 4,
    "frameworks": 4,
    "docs": 4,
    "tests": 5,
}
USERS = ("docs", "frameworks")  # Users of the installed library: what they need is in annulus.h.
BACKENDS = rules_rooms.ROOMS["transport"][-3]  # Above them are only what goes on for one of them, and the list of them.
LIBRARY = ("base/", "cuda_kernels/", "transport/", "collectives/")


def is_library(source):
    return source.path.startswith(LIBRARY)


def file_length(source):
    if source.is_cpp or source.is_python or source.is_shell:
        count = len(source.text.splitlines())
        most = LONGER_FILES.get(source.path, MOST_FILE_LINES)
        if count > most:
            yield 1, f"{count} lines, at most {most}: split it by responsibility"


def function_length(source):
    if source.is_cpp:
        found = functions(source.code)
    elif source.is_python:
        found = (
            (node.name, node.lineno, node.end_lineno)
            for node in ast.walk(ast.parse(source.text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        )
    else:
        return
    for name, first, last in found:
        if last - first + 1 > MOST_FUNCTION_LINES:
            yield first, f"{name} has {last - first + 1} lines, at most {MOST_FUNCTION_LINES}: give its parts names"


def class_size(source):
    if not source.is_cpp:
        return
    for name, line, members in classes(source.code):
        if len(members) > MOST_DATA_MEMBERS:
            yield line, f"{name} has {len(members)} data members, at most {MOST_DATA_MEMBERS}: which of them belong together?"


def include_direction(source):
    if not source.is_cpp or source.top not in LAYERS:
        return
    for number, path in includes(source):
        target = path.split("/")[0]
        if target not in LAYERS or "/" not in path:
            yield number, f'"{path}": quote our own files by their path from the root, as in "base/status.h"; others go in <>'
        elif source.top in USERS and target != source.top:
            yield number, f'"{path}": {source.top} are users of Annulus; they include <annulus.h> and their own files only'
        elif LAYERS[target] > LAYERS[source.top]:
            yield number, f'"{path}": {source.top} lies below {target}; move what is shared down, or pass it in'


def backend_includes(source):
    if not source.is_cpp:
        return
    match = re.match(r"transport/(\w+)/", source.path)
    own = match.group(1) if match and match.group(1) in BACKENDS else None
    for number, path in includes(source):
        match = re.match(r"transport/(\w+)/", path)
        if not match or match.group(1) not in BACKENDS:
            continue
        backend = match.group(1)
        if own and own != backend:
            yield number, f'"{path}": backend {own} must not know {backend}; share it in transport/'
        elif not own and not source.path.startswith(("transport/select/", "tests/")):
            yield number, f'"{path}": only transport/select and tests name a backend; ask select for it'


def backend_names(source):
    if not source.is_cpp or source.top not in ("base", "cuda_kernels", "transport", "collectives", "launcher", "bench"):
        return
    for number, line in enumerate(source.lines, 1):
        for backend in BACKENDS:
            match = re.search(rf'"{backend}"|\bk{backend.title()}Transport\b', line.split("//")[0])
            if match and not source.path.startswith(f"transport/{backend}/"):
                yield number, f"{match.group(0)}: only that backend says its name; ask its TransportInfo (transport/transport_info.h)"


def everywhere(_source):
    return True


def outside_tests(source):
    return not source.path.startswith("tests/")


# What is banned, why and what to use instead, where the ban holds, and files that it spares.
BANNED = [
    (r"\b(?:strcpy|strcat|sprintf|vsprintf|gets|strtok)\s*\(", "knows no bounds; use std::string or snprintf", everywhere, ()),
    (r"\b(?:rand|srand|drand48)\s*\(", "has hidden state; use a seeded std::mt19937_64", everywhere, ()),
    (
        r"\b(?:sleep|usleep|nanosleep|clock_nanosleep|sleep_for|sleep_until)\s*\(",
        "waits for a time, not for an event; wait for the event, with a deadline",
        everywhere,
        (),
    ),
    (r"(?<![\w.>:])(?:system|popen)\s*\(", "runs a shell; use posix_spawn or fork and exec", everywhere, ()),
    (r"(?<![\w.>])assert\s*\(", "vanishes with NDEBUG; use ANNULUS_CHECK", everywhere, ()),
    (r"\b(?:alloca|setjmp|longjmp|tmpnam|mktemp)\s*\(", "is unsafe; use a container, a Status or mkstemp", everywhere, ()),
    (r"(?<![\w.>])(?:_exit|_Exit|exit|quick_exit)\s*\(", "ends the user's process; return a Status", is_library, ()),
    (
        r"\bstd::(?:cout|cerr|clog)\b|(?<![\w.>])(?:printf|fprintf|vfprintf|puts|fputs|putchar|perror)\s*\(",
        "writes to the user's terminal; use Log()",
        is_library,
        ("base/log.cc", "base/check.h"),  # The log itself; the last words before abort().
    ),
    (r"^using namespace\b", "at file scope pulls in names unseen; name what you use", everywhere, ()),
    (
        # Not within the deleter of an owner, nor a member function free().
        r"^(?!.*\boperator\b).*?(?<![\w.>])(malloc|calloc|realloc|free)\s*\((?!\s*\))",
        "has no owner; use std::vector or std::unique_ptr with a deleter",
        is_library,
        (),
    ),
    (
        r"\b(?:void|Status)\s+(?:\w+::)*(Take\w*)\s*\(",
        "returns nothing that it has taken; OnX acts on what has arrived, ReadX parses it",
        everywhere,
        (),
    ),
    (r"\bthrow\b", "must not cross the C API; return a Status", is_library, ()),
    (
        r"\.detach\s*\(\s*\)",
        "leaves a thread that nobody joins; keep it and join it",
        everywhere,
        ("transport/address.cc",),  # Nothing else bounds the system's resolver in time.
    ),
    (
        r"\b(?:secure_)?getenv\s*\(",
        "outside collectives/core/options.cc; every setting is read there, once",
        outside_tests,
        ("collectives/core/options.cc",),
    ),
]


def banned_calls(source):
    if not source.is_cpp:
        return
    code_lines = source.code.split("\n")
    for pattern, reason, holds, allowed in BANNED:
        if not holds(source) or source.path in allowed:
            continue
        for number, line in enumerate(code_lines, 1):
            match = re.search(pattern, line)
            if match:
                yield number, f"{match.group(match.lastindex or 0).strip(' (')} {reason}"


# Google style does not indent namespaces: what stands at column 0 is at namespace scope.
GLOBAL = re.compile(
    r"^(?:(?:static |inline )*thread_local .*;"
    r"|(?:(?:static|inline) )*(?:(?:unsigned |signed )?(?:int|bool|long|char|size_t|u?int\d+_t|double|float)"
    r"|std::[\w:]+(?:<[^;()=]*>)?)[ *]+\w+(?:\[\w*\])?(?: = [^;]*|\{[^;]*\})?;)"
)


# The log level is the process's; a call that fails without a communicator leaves its error with the thread.
GLOBALS_ALLOWED = ("base/log.cc", "collectives/api/last_error.cc")
# Variables in functions that live as long as the process; constants are no state.
LASTING = re.compile(r"^\s+static (?!const\b|constexpr\b)(?:thread_local )?[\w:<>,&* ]*[ &*]\w+(?: = [^;]*|\{[^;]*\})?;")
# CONTRIBUTING gives the reason for each.
LASTING_ALLOWED = ("collectives/api/process_state.cc", "collectives/observe/trace_file.cc", "collectives/core/options.cc",
                   "transport/forked_child.cc")
# Handles that the C API gives out are plain pointers until they come back.
HANDLES_ALLOWED = ("collectives/api/c_api.cc", "collectives/comm/communicator.cc")


def no_globals(source):
    if not source.is_cpp or not is_library(source):
        return
    for number, line in enumerate(source.code.split("\n"), 1):
        if GLOBAL.match(line) and source.path not in GLOBALS_ALLOWED:
            yield number, "a variable at namespace scope; make it a member, or constexpr"
        if LASTING.match(line) and source.path not in LASTING_ALLOWED:
            yield number, "a variable that lasts as long as the process; make it a member, or part of ProcessState"


def owned_new(source):
    """What `new` gives goes straight to an owner: a smart pointer on the same line, or a member's initialiser."""
    if not source.is_cpp or not is_library(source) or source.path in HANDLES_ALLOWED:
        return
    for number, line in enumerate(source.code.split("\n"), 1):
        if re.search(r"\boperator\b", line):  # The deleter of an owner.
            continue
        if re.search(r"(?<!\w)new\s+[A-Za-z:]", line) and not re.search(r"_ptr|reset\(|\w_\(.*new ", line):
            yield number, "new without an owner on its line; use std::make_unique, or std::unique_ptr<T>(new T(...))"
        if re.search(r"\bdelete\b(?:\[\])?\s+\w", line):
            yield number, "delete by hand; hold it in a std::unique_ptr"


def head_of_file(source):
    """Every file opens with what it is for; a .cc may leave that to the header of the same name."""
    first = source.lines[0]
    if source.is_cpp:
        own_header = f'#include "{os.path.splitext(source.path)[0]}.h"'
        if not first.startswith(("//", "/*")) and first != own_header:
            yield 1, "opens without a comment; say in a sentence what the file is for, and which threads may use it"
    elif source.is_python or source.is_shell:
        opening = "\n".join(line for line in source.lines[:2] if not line.startswith("#!"))
        if source.lines != [""] and not opening.startswith(('"""', "#")):
            yield 1, "opens without a comment; say in a sentence what the file is for"
    elif source.is_build and not first.startswith(("#", '"""')):
        yield 1, "opens without a comment; say in a paragraph what this package is for"


def header_guard(source):
    if source.is_header:
        guarded = source.path == "collectives/annulus.h"  # C99 users may have compilers without the pragma.
        if guarded and "#ifndef ANNULUS_H_" not in source.text:
            yield 1, "the public header has lost its guard"
        # What Highway compiles once per instruction set guards itself by Highway's toggle.
        if not guarded and not re.search(r"^#pragma once$|\bHWY_TARGET_TOGGLE\b", source.text, re.MULTILINE):
            yield 1, "lacks #pragma once"


def leftovers(source):
    for number, line in enumerate(source.lines, 1):
        match = re.search(r"\b(?:TODO|FIXME|XXX|HACK)\b", line)
        if match:
            yield number, f"{match.group(0)}: do it, or take it to the issue tracker"
        match = re.search(r"(?<![\w./])/(?:work|farm|root|home)/\w+", line)
        if match:
            yield number, f"{match.group(0)} lies on one machine only; use a path from the root of the repository"


def in_a_build_file(source, build_texts, script_texts):
    """Every C++ file is compiled: it is named in the BUILD file of its package, or in a script beside it."""
    if not source.is_cpp:
        return
    folder = source.folder
    while folder and folder not in build_texts:
        folder = os.path.dirname(folder)
    text = build_texts.get(folder, "")
    inside = os.path.relpath(source.path, folder or ".")
    named = f'"{inside}"' in text or f'name = "{os.path.splitext(inside)[0]}"' in text
    if not named and source.name not in script_texts.get(source.folder, ""):
        yield 1, f"no target of //{folder} names it; add it to one, or delete it"


def types_of_one_name(sources):
    """(path, line, what to do) of types whose full name another file uses too: a program with both breaks silently."""
    first = {}
    for source in sorted((each for each in sources if each.is_cpp), key=lambda each: each.path):
        for name, line in namespace_types(source.code):
            path = first.setdefault(name, source.path)
            if path != source.path:
                yield source.path, line, f"{name} is also the name of a type in {path}; rename one, or put it into an unnamed namespace"


PER_FILE = {
    "file-length": file_length,
    "function-length": function_length,
    "class-size": class_size,
    "include-direction": include_direction,
    "backend-include": backend_includes,
    "backend-name": backend_names,
    "banned": banned_calls,
    "global": no_globals,
    "owner": owned_new,
    "head": head_of_file,
    "guard": header_guard,
    "leftover": leftovers,
}
