#!/usr/bin/env python3
"""client.c compiles without a warning as C99 and as C++20, and works."""

import os
import subprocess
import sys
import tempfile
import unittest

HEADER, LIBRARY, PROGRAM = (os.path.abspath(path) for path in sys.argv[1:4])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wpadded", "-Werror"]


class Client(unittest.TestCase):
    def check(self, *language):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(LIBRARY, os.path.join(folder, "libannulus.so.0"))
            program = os.path.join(folder, "client")
            source = ["-x", language[0], PROGRAM, "-x", "none"]
            subprocess.run(["c++" if language[0] == "c++" else "cc", language[1], *WARNINGS, f"-I{os.path.dirname(HEADER)}",
                            *source, LIBRARY, f"-Wl,-rpath,{folder}", "-o", program], check=True, timeout=120)
            subprocess.run([program], check=True, timeout=60)

    def test_as_c99(self):
        self.check("c", "-std=c99")

    def test_as_cpp20(self):
        self.check("c++", "-std=c++20")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
