"""The files that tidy reads, and views of their text in which a rule can search without meeting comments or strings."""

import os
import re

CPP_ENDS = (".h", ".cc", ".c", ".cu", ".cuh", ".inc")
SKIPPED_FOLDERS = {".git", ".cache", "__pycache__"}


class Source:
    """One file: its path from the root of the repository, its text, and for C++ its bare code."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.lines = text.split("\n")
        self.name = os.path.basename(path)
        self.folder = os.path.dirname(path)
        self._code = None

    @property
    def is_cpp(self):
        return self.path.endswith(CPP_ENDS)

    @property
    def is_header(self):
        return self.path.endswith((".h", ".cuh"))

    @property
    def is_python(self):
        return self.path.endswith(".py") or self.text.startswith("#!/usr/bin/env python3")

    @property
    def is_shell(self):
        return self.path.endswith(".sh") or self.text.startswith(("#!/bin/bash", "#!/bin/sh"))

    @property
    def is_build(self):
        return self.name in ("BUILD", "WORKSPACE") or self.path.endswith((".BUILD", ".bzl"))

    @property
    def is_markdown(self):
        return self.path.endswith(".md")

    @property
    def top(self):
        """The folder directly under the root: the layer."""
        return self.path.split("/")[0] if "/" in self.path else ""

    @property
    def code(self):
        """The C++ text with comments, strings and preprocessor lines blanked out; every line keeps its number."""
        if self._code is None:
            self._code = blank_preprocessor(blank_comments_and_strings(self.text))
        return self._code


def read_tree(root):
    """All text files under `root` that belong to the project."""
    sources = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith("bazel-")
        )
        for file in sorted(files):
            if file == ".git":  # In a worktree it tells where the repository is.
                continue
            full = os.path.join(folder, file)
            path = os.path.relpath(full, root)
            if os.path.islink(full) or not os.path.isfile(full):
                continue
            try:
                with open(full, encoding="utf-8") as opened:
                    sources.append(Source(path, opened.read()))
            except UnicodeDecodeError:
                continue  # Pictures, fuzz inputs.
    return sources


# In this order, for what begins first wins. A quote within a number (300'000) is no character literal.
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>R"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)")
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<number>\b\d(?:'?[\w.])*)
      | (?P<char>'(?:\\.|[^'\\\n])+')""",
    re.DOTALL | re.VERBOSE,
)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def blank_comments_and_strings(text):
    def replace(match):
        if match.lastgroup == "number" or match.group("number"):
            return match.group(0)
        if match.group("comment"):
            return blank(match.group(0))
        quoted = match.group(0)
        return quoted[0] + blank(quoted[1:-1]) + quoted[-1]

    return TOKEN.sub(replace, text)


def blank_preprocessor(text):
    lines = text.split("\n")
    continued = False
    for i, line in enumerate(lines):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        if directive:
            lines[i] = ""
    return "\n".join(lines)


# What opens a block in which functions may lie.
SCOPE = re.compile(r"(?:inline\s+|typedef\s+)*(?:namespace|class|struct|union)\b|extern\s+\"[^()]*$")
TEMPLATE = re.compile(r"template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>\s*(?:requires\b[^{};]*?\)\s*)?")


def opens_scope(head):
    return bool(SCOPE.match(TEMPLATE.sub("", head).strip()))


def opens_function(head):
    return ")" in head and not re.match(r"enum\b|typedef\b", head.strip()) and not head.rstrip().endswith("=")


def functions(code):
    """Yields (name, first line, last line) of every function body in bare code, the outermost only."""
    scopes = []  # For each open brace: True when functions may lie directly in it.
    head_begin = 0
    inside = None  # (name, first line, depth) of the function that we are in.
    line = 1
    for i, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char == "{":
            head = code[head_begin:i]
            is_scope = opens_scope(head)
            if inside is None and not is_scope and opens_function(head) and all(scopes):
                first = code.count("\n", 0, head_begin + len(head) - len(head.lstrip())) + 1
                inside = (function_name(head), first, len(scopes))
            scopes.append(is_scope)
            head_begin = i + 1
        elif char == "}":
            if scopes:
                scopes.pop()
            following = code[i + 1 : i + 80].lstrip()[:1]
            if inside is not None and len(scopes) == inside[2]:
                # A member initialised with braces, as in `: a_{1}, b_(2) {`, is part of a head, not a body.
                if following in (",", "{"):
                    inside = None
                    continue
                yield inside[0], inside[1], line
                inside = None
            head_begin = i + 1
        elif char == ";" and inside is None:
            head_begin = i + 1


def function_name(head):
    match = re.search(r"([~\w:]+)\s*\(\s*(\w+)?(?:\s*,\s*(\w+))?", head)
    if not match:
        return "function"
    if match.group(1).startswith("TEST") or match.group(1) == "TYPED_TEST":
        return f"{match.group(2)}.{match.group(3)}"
    return match.group(1)


CLASS = re.compile(r"\b(?:class|struct|union)\s+(?:alignas\([^)]*\)\s*)?(\w+)[^{};()=]*(?::[^{};]*)?\{")
# A name with an underscore at its end, just before the end of its declaration. Of an initialiser's braces only the outer
# ones are left.
MEMBER = re.compile(r"\b(\w+_)\s*(?:\[[^\]]*\]\s*)*(?:\{\}|=[^;]*)?;")


def classes(code):
    """Yields (name, line, names of its data members) of every class in bare code, nested ones too.

    Counts members of its own whose names end in an underscore, as all private ones do; not those of bases or nested classes.
    """
    for head in CLASS.finditer(code):
        depth = 1
        own = []  # The class's text without what lies in further braces.
        for char in code[head.end() :]:
            if char == "}":
                depth -= 1
                if depth == 0:
                    break
            if depth == 1:
                own.append(char)
            if char == "{":
                depth += 1
        yield head.group(1), code.count("\n", 0, head.start()) + 1, MEMBER.findall("".join(own))


TYPE = re.compile(
    r"(?:typedef\s+)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:(?:alignas\([^)]*\)|\[\[[^\]]*\]\])\s*)*"
    r"(\w+)(?:\s+final)?\s*(?::(?!:).*)?$",
    re.DOTALL,
)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\b\s*([\w:]*)$")


def namespace_types(code):
    """Yields (name with its namespace, line) of every class and enumeration defined in a named namespace or in none.

    Those in unnamed namespaces, in classes and in functions are left out, and so are specialisations of templates.
    """
    scopes = []  # For each open brace: the name of its namespace; None when what lies in it belongs to this file alone.
    head_begin = 0
    for place, char in enumerate(code):
        if char == "{":
            head = TEMPLATE.sub("", code[head_begin:place]).strip()
            found = TYPE.match(head)
            if found and None not in scopes:
                yield "::".join([*filter(None, scopes), found.group(1)]), code.count("\n", 0, place) + 1
            namespace = NAMESPACE.match(head)
            is_block_of_c = re.match(r"extern\s+\"", head) and "(" not in head
            scopes.append(namespace.group(1) or None if namespace else "" if is_block_of_c else None)
        elif char == "}" and scopes:
            scopes.pop()
        if char in "{};":
            head_begin = place + 1


def includes(source):
    """(line, path) of what a C++ file includes in quotes."""
    for number, line in enumerate(source.lines, 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if match:
            yield number, match.group(1)
