#!/usr/bin/env python3
"""The manual pages render without complaint, and know the same options as the programs' --help.

man_test.py PROGRAM PAGE ...: pairs of a program and its page.
"""

import os
import re
import subprocess
import sys

OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def options_of_help(text):
    """What stands at the left of the list of options."""
    found = set()
    for line in text.splitlines():
        if re.match(r"  -", line):
            words = line.split(maxsplit=1)[0]
            found.update(OPTION.findall(words))
    return found


def options_of_page(text):
    """What the items of the page's lists begin with: `.It Fl n Ar NP , Fl -np Ar NP` has -n and --np."""
    found = set()
    for line in text.splitlines():
        if line.startswith(".It "):
            found.update("-" + name for name in re.findall(r"\bFl (-?\w[\w-]*)", line))
    return found


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ends with status {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def complaints(program, page):
    name = os.path.basename(program)
    help_text = run(os.path.abspath(program), "--help")
    with open(page, encoding="utf-8") as opened:
        page_text = opened.read()
    in_help, in_page = options_of_help(help_text), options_of_page(page_text)
    if not in_help:
        yield f"{name} --help lists no options"
    for option in sorted(in_help - in_page):
        yield f"{page} lacks {option}, which {name} --help lists: add an .It for it"
    # Anywhere in the help: it tells of other spellings within its sentences.
    for option in sorted(in_page - set(OPTION.findall(help_text))):
        yield f"{page} has {option}, which {name} --help does not know: remove it"
    run("mandoc", "-Tlint", "-Wwarning", page)
    rendered = re.sub(r".\x08", "", run("mandoc", "-Tascii", page))
    for option in sorted(in_page):
        if not re.search(rf"^ +.*(?<![\w-]){option}(?![\w-])", rendered, re.MULTILINE):
            yield f"{page}: {option} is not seen in the rendered page"


def main():
    pairs = sys.argv[1:]
    if not pairs or len(pairs) % 2:
        sys.exit(__doc__)
    found = [each for i in range(0, len(pairs), 2) for each in complaints(pairs[i], pairs[i + 1])]
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
