#!/usr/bin/env python3
"""Structs may grow in both directions: growth.c works when it is built with an older, this or a newer header."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

# [HEADER, LIBRARY, LAUNCHER, growth.c]
HEADER, LIBRARY, LAUNCHER, PROGRAM = (os.path.abspath(path) for path in sys.argv[1:5])
STRUCT = re.compile(r"(typedef struct \w+ \{\n  size_t struct_bytes;.*?)(\n\} (\w+);)", re.DOTALL)


def without_last_field(struct):
    """The struct as the version before its last field had it."""
    code = re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL).rstrip()
    return code[: code.rindex(";", 0, -1) + 1]


def header_of(form):
    with open(HEADER, encoding="utf-8") as file:
        text = file.read()
    if form == "OLDER":
        return STRUCT.sub(lambda match: without_last_field(match.group(1)) + match.group(2), text)
    if form == "NEWER":
        return STRUCT.sub(lambda match: match.group(1) + "\n  uint64_t added;" + match.group(2), text)
    return text


class Growth(unittest.TestCase):
    def check(self, form):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "annulus.h"), "w", encoding="utf-8") as file:
                file.write(header_of(form))
            os.symlink(LIBRARY, os.path.join(folder, "libannulus.so.0"))
            program = os.path.join(folder, "growth")
            subprocess.run(["cc", "-std=c99", "-O1", f"-D{form}", f"-I{folder}", PROGRAM, LIBRARY, f"-Wl,-rpath,{folder}",
                            "-o", program], check=True, timeout=120)
            subprocess.run([LAUNCHER, "-np", "2", program], check=True, timeout=120)

    def test_an_older_program_runs_with_this_library(self):
        self.check("OLDER")

    def test_a_program_of_the_same_version_runs(self):
        self.check("SAME")

    def test_a_newer_program_runs_with_this_library(self):
        self.check("NEWER")

    def test_the_headers_differ_and_all_structs_are_tried(self):
        structs = [match.group(3) for match in STRUCT.finditer(header_of("SAME"))]
        self.assertEqual(len(structs), header_of("SAME").count("size_t struct_bytes;"))
        self.assertEqual(header_of("NEWER").count("uint64_t added;"), len(structs))
        with open(PROGRAM, encoding="utf-8") as file:
            program = file.read()
        self.assertEqual([struct for struct in structs if struct not in program], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
