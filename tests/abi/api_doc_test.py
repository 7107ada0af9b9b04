#!/usr/bin/env python3
"""The examples of docs/api.md compile as they are there, run, and cover every section of annulus.h."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

HEADER, LIBRARY, LAUNCHER, PAGE = (os.path.abspath(path) for path in sys.argv[1:5])


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Page(unittest.TestCase):
    def setUp(self):
        self.code = "\n".join(re.findall(r"^```c\n(.*?)^```$", read(PAGE), re.MULTILINE | re.DOTALL))
        self.examples = re.findall(r"^static void (example_\w+)\(annulus_comm_t\* comm\)", self.code, re.MULTILINE)

    def test_the_examples_run(self):
        calls = "".join(f"  {name}(comm);\n" for name in sorted(self.examples, key=lambda name: name == "example_counters"))
        program = (
            "#include <annulus.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n" + self.code +
            f"int main(void) {{\n  annulus_comm_t* comm = NULL;\n  need(annulus_comm_create(NULL, &comm));\n{calls}"
            "  need(annulus_comm_destroy(comm));\n  return 0;\n}\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            source, binary = os.path.join(folder, "api.c"), os.path.join(folder, "api")
            with open(source, "w", encoding="utf-8") as file:
                file.write(program)
            os.symlink(LIBRARY, os.path.join(folder, "libannulus.so.0"))
            subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{os.path.dirname(HEADER)}",
                            source, LIBRARY, f"-Wl,-rpath,{folder}", "-o", binary], check=True, timeout=120)
            subprocess.run([LAUNCHER, "-np", "2", binary], check=True, timeout=120)

    def test_every_section_has_an_example(self):
        sections = re.findall(r"^/\* -- (.+?) -+ \*/$", read(HEADER), re.MULTILINE)
        names = ["example_" + re.sub(r"\W+", "_", section.lower()) for section in sections]
        self.assertGreater(len(sections), 10)
        self.assertEqual(sorted(self.examples), sorted(names))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
