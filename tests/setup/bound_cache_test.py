#!/usr/bin/env python3
"""third_party/setup/bound_cache deletes what was not used for longest, only beyond the bound, and fails at nothing."""

import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = "third_party/setup/bound_cache"
MIB = 1 << 20


class BoundCacheTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def add(self, name, mib, written_s, read_s):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as opened:
            opened.truncate(mib * MIB)
        os.utime(path, (read_s, written_s))

    def run_it(self, *arguments):
        done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, b""))

    def left(self):
        return sorted(os.path.join(os.path.relpath(folder, self.folder), name) for folder, _, names in os.walk(self.folder)
                      for name in names)

    def test_nothing_goes_within_the_bound(self):
        self.add("cas/aa/one", 4, 1000, 1000)
        self.add("cas/bb/two", 4, 1000, 1000)
        self.run_it(self.folder, "8")
        self.assertEqual(self.left(), ["cas/aa/one", "cas/bb/two"])

    def test_the_least_recently_used_go_until_three_quarters_are_left(self):
        self.add("cas/aa/read_last", 2, 1000, 9000)
        self.add("cas/bb/oldest", 2, 2000, 2000)
        self.add("cas/bb/second", 2, 3000, 3500)
        self.add("ac/cc/written_last", 2, 9500, 1000)
        self.add("cas/dd/third", 2, 8000, 8000)
        self.run_it(self.folder, "8")  # There are 10 MiB, and 6 may stay.
        self.assertEqual(self.left(), ["ac/cc/written_last", "cas/aa/read_last", "cas/dd/third"])

    # With relatime a file that was read is not marked again for a day, unless it seems to have been written since.
    def test_a_file_that_was_read_seems_to_be_written_then(self):
        self.add("cas/aa/read", 1, 1000, 9000)
        self.add("cas/bb/not_read", 1, 2000, 1500)
        self.run_it(self.folder, "8")
        times = {name: os.stat(os.path.join(self.folder, "cas", name)) for name in ("aa/read", "bb/not_read")}
        self.assertEqual([times["aa/read"].st_mtime, times["aa/read"].st_atime], [9000, 9000])
        self.assertEqual([times["bb/not_read"].st_mtime, times["bb/not_read"].st_atime], [2000, 1500])

    def test_a_file_that_cannot_go_and_a_strange_one_stop_nothing(self):
        self.add("cas/aa/old", 8, 1000, 1000)
        self.add("cas/bb/new", 2, 2000, 2000)
        os.symlink("/", os.path.join(self.folder, "cas/elsewhere"))
        self.run_it(self.folder, "8")
        self.assertEqual(self.left(), ["cas/bb/new"])

    def test_no_cache_and_no_sense_are_no_failures(self):
        self.run_it(os.path.join(self.folder, "missing"))
        self.run_it(self.folder, "many")


if __name__ == "__main__":
    sys.exit(unittest.main())
