"""What a C header declares, read without a compiler: names and types. Names of parameters are left out: they bind nobody."""

import re


class NotUnderstood(Exception):
    """A declaration of a form that this file does not know yet."""


def declarations(text):
    """The header's declarations, each on one line, without comments, preprocessor and extern "C"."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern\s+"C"\s*\{', " ", text)
    text = re.sub(r"\bANNULUS_\w*API\b", " ", text)
    depth, begin = 0, 0
    for i, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:  # The end of extern "C".
            depth, begin = 0, i + 1
        elif char == ";" and depth == 0:
            yield " ".join(text[begin:i].split())
            begin = i + 1


def split_commas(text):
    """Parts between commas that stand outside all brackets."""
    depth, parts = 0, [""]
    for char in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def tidy_type(text):
    """A type in one spelling: `const void * p` and `const void *p` are the same without the p."""
    return re.sub(r"\s*\*\s*", "*", " ".join(text.split())).replace("*const", "* const").strip()


def split_name(text):
    """(name, type) of a field, a parameter or a function pointer; the name is "" when there is none."""
    text = text.strip()
    pointer = re.search(r"\(\s*\*\s*(\w*)\s*\)\s*\(", text)
    if pointer:
        opening = pointer.end() - 1
        returned = tidy_type(text[: pointer.start()])
        return pointer.group(1), f"{returned} (*){signature_end(text[opening:])}"
    match = re.fullmatch(r"(.*?[\s*])(\w+)\s*((?:\[[^\]]*\])*)", text)
    if not match or match.group(2) in ("int", "char", "long", "short", "double", "float", "unsigned", "signed", "const"):
        return "", tidy_type(text)
    return match.group(2), tidy_type(match.group(1)) + match.group(3)


def signature_end(text):
    """(parameters) without their names."""
    if not text.startswith("(") or not text.endswith(")"):
        raise NotUnderstood(text)
    return "(" + ", ".join(split_name(part)[1] for part in split_commas(text[1:-1])) + ")"


class Header:
    """What a header declares: `lines` that need no compiler, and what a compiler has to be asked for."""

    def __init__(self, text):
        self.lines = []
        self.enums = []  # (type, names)
        self.structs = []  # (type, [(field, its type)])
        self.constants = re.findall(r"^#define (ANNULUS_(?!VERSION_|\w*API\b|\w*H_)\w+) +\S", text, re.MULTILINE)
        for declaration in declarations(text):
            self._add(declaration)

    def _add(self, declaration):
        block = re.fullmatch(r"(typedef )?(enum|struct|union)(?: (\w+))? ?\{(.*)\} ?(\w*)", declaration)
        opaque = re.fullmatch(r"typedef ((?:struct|union|enum) \w+) (\w+)", declaration)
        if block:
            self._add_block(*block.groups())
        elif opaque:
            self.lines.append(f"type {opaque.group(2)}: {opaque.group(1)}")
        elif declaration.startswith("typedef "):
            name, kind = split_name(declaration[len("typedef ") :])
            self.lines.append(f"type {name}: {kind}")
        else:
            function = re.fullmatch(r"([^(]*?[\s*])(\w+) ?(\(.*\))", declaration)
            if not function:
                raise NotUnderstood(declaration)
            returned, name, parameters = function.groups()
            self.lines.append(f"function {name}: {tidy_type(returned)} {signature_end(parameters)}")

    def _add_block(self, typedef, kind, tag, body, alias):
        name = alias if typedef else f"{kind} {tag}"
        if kind == "enum":
            self.enums.append((name, [part.split("=")[0].strip() for part in split_commas(body)]))
            return
        fields = []
        for part in body.split(";"):
            if part.strip():
                if "{" in part or len(split_commas(part)) != 1 or ":" in part:
                    raise NotUnderstood(f"{name}: {part.strip()}")
                fields.append(split_name(part))
        self.structs.append((name, fields))
