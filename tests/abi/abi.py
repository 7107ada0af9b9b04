#!/usr/bin/env python3
"""Compares the library's binary interface with the recorded one, or records it.

  abi.py check HEADER LIBRARY FOLDER            fails when something changed without the version change that it takes
  abi.py update HEADER LIBRARY FOLDER           records today's interface, which is allowed until its version is released
  abi.py update HEADER LIBRARY FOLDER --freeze  and marks it released: from then on it never changes

FOLDER holds a file for each minor version, annulus-0.1.abi and so on: patch versions change nothing in it.
"""

import collections
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import describe  # noqa: E402

UPDATE = "bazel run //tests/abi:update"
OPEN, FROZEN = "open", "released"
HEAD = f"""# The binary interface of Annulus {{0}}. Written by `{UPDATE}`, compared by a test.
# A field has its type, then its offset and its size in bytes.
version {{0}}
state {{1}}
"""

Record = collections.namedtuple("Record", "state lines")


def name_of(version):
    return f"{version[0]}.{version[1]}"


def file_of(version):
    return f"annulus-{name_of(version)}.abi"


def parse(text):
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    state = [line.split()[1] for line in lines if line.startswith("state ")]
    items = sorted({line for line in lines if not line.startswith(("state ", "version "))})
    return Record(state[0] if len(state) == 1 else "unclear", items)


def read_records(folder):
    """The recorded interfaces by (major, minor)."""
    records = {}
    for file in os.listdir(folder):
        match = re.fullmatch(r"annulus-(\d+)\.(\d+)\.abi", file)
        if match:
            with open(os.path.join(folder, file), encoding="utf-8") as opened:
                records[int(match.group(1)), int(match.group(2))] = parse(opened.read())
    return records


def breaks(old, new):
    """Lines of `old` that programs built with it rely on and `new` does not have."""
    sizes = {line.split(":")[0]: line for line in new if line.startswith("struct ")}
    lost = []
    for line in sorted(set(old) - set(new)):
        # A struct that starts with its own size may grow at its end; a field that moved is a line of its own.
        successor = sizes.get(line.split(":")[0], "")
        grown = re.fullmatch(r"struct (\w+): (\d+) bytes, grows", line)
        grown_to = re.fullmatch(r"struct (\w+): (\d+) bytes, grows", successor)
        if not (grown and grown_to and int(grown_to.group(2)) > int(grown.group(2))):
            lost.append(line)
    return lost


def difference(old, new):
    lines = [f"  - {line}" for line in sorted(set(old) - set(new))] + [f"  + {line}" for line in sorted(set(new) - set(old))]
    return "\n".join(sorted(lines, key=lambda line: (line[4:], line[2])))


def check(version, lines, records):
    """What is wrong, as a list of paragraphs."""
    version = version[:2]
    file = f"tests/abi/{file_of(version)}"
    record = records.get(version)
    wrong = []
    if record is None:
        wrong.append(f"annulus.h has version {name_of(version)}, of which there is no record {file}. Write it:\n\n  {UPDATE}")
    elif record.state not in (OPEN, FROZEN):
        wrong.append(f"{file} must have one line 'state {OPEN}' or 'state {FROZEN}'. Write it anew:\n\n  {UPDATE}")
    elif record.lines != lines and record.state == OPEN:
        wrong.append(
            f"{file} (-) and the code (+) differ:\n\n{difference(record.lines, lines)}\n\n"
            f"{name_of(version)} is not released yet, so if that is meant, record it and commit the file:\n\n  {UPDATE}"
        )
    elif record.lines != lines:
        part = "MAJOR" if breaks(record.lines, lines) and version[0] > 0 else "MINOR"
        wrong.append(
            f"{file} (-) and the code (+) differ, and {name_of(version)} is released:\n\n{difference(record.lines, lines)}\n\n"
            f"That takes a new version. Raise ANNULUS_VERSION_{part} in collectives/annulus.h, then:\n\n  {UPDATE}"
        )
    wrong.extend(f"{hole}. Order the fields so that none is left, or widen one." for hole in describe.holes(lines))
    earlier = [each for each in records if each < version]
    if earlier:
        wrong.extend(check_step(max(earlier), records[max(earlier)], version, lines))
    return wrong


def check_step(before, old, version, lines):
    """Whether the version rose as far as the changes since the one before it ask for."""
    if old.state != FROZEN:
        yield (
            f"tests/abi/{file_of(before)} is no longer the newest, but its state is '{old.state}'. Delete it if "
            f"{name_of(before)} was never released, else write 'state {FROZEN}' into it."
        )
    lost = breaks(old.lines, lines)
    # Before 1.0 a new minor version may break what the last one promised.
    if lost and before[0] == version[0] > 0:
        listed = "\n".join(f"  - {line}" for line in lost)
        yield (
            f"Programs built with {name_of(before)} rely on this, which {name_of(version)} has no longer:\n\n{listed}\n\n"
            "Bring it back, or raise ANNULUS_VERSION_MAJOR in collectives/annulus.h."
        )


def update(version, lines, folder, freeze):
    """Writes the record; returns what to tell."""
    version = version[:2]
    old = read_records(folder).get(version)
    path = os.path.join(folder, file_of(version))
    if old is not None and old.state == FROZEN:
        if old.lines == lines:
            return f"{path} is right; {name_of(version)} is released"
        sys.exit("\n\n".join(check(version, lines, {version: old})))
    text = HEAD.format(name_of(version), FROZEN if freeze else OPEN) + "\n".join(lines) + "\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    changed = difference(old.lines if old else [], lines)
    return f"{path}: {len(lines)} items" + (f"\n{changed}" if old and changed else "")


def main():
    words = [word for word in sys.argv[1:] if word != "--freeze"]
    freeze = "--freeze" in sys.argv
    if len(words) != 4 or words[0] not in ("check", "update") or (freeze and words[0] != "update"):
        sys.exit(__doc__)
    command, header, library, folder = words
    version, lines = describe.describe(header, library)
    if command == "update":
        # The real tree, not the links to it that Bazel lays out.
        print(update(version, lines, os.path.join(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ""), folder), freeze))
        return
    wrong = check(version, lines, read_records(folder))
    print("\n\n".join(wrong) or f"{len(lines)} items as recorded")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
