#!/usr/bin/env python3
"""third_party/setup/results.py counts tests and finds the slowest, from records as Bazel 4.2.3 writes them."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = "third_party/setup/results.py"


def asked(label):
    return {"id": {"targetConfigured": {"label": label}}, "configured": {"targetKind": "cc_test rule", "testSize": "SMALL"}}


def ran(label, milliseconds, shard=1, attempt=1, status="PASSED", **more):
    return {"id": {"testResult": {"label": label, "run": 1, "shard": shard, "attempt": attempt}},
            "testResult": {"testAttemptDurationMillis": str(milliseconds), "status": status, **more}}


def ended(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


class ResultsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def record(self, name, *events):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as opened:
            opened.writelines(json.dumps(event) + "\n" for event in events)
        return path

    def lines(self, *arguments):
        return subprocess.check_output([sys.executable, PROGRAM, *arguments], text=True).splitlines()

    def test_counts_name_what_did_not_pass(self):
        path = self.record("quick.json", asked("//a:good"), asked("//a:bad"), asked("//a:flaky"), asked("//a:unbuilt"),
                           ended("//a:good", "PASSED"), ended("//a:bad", "FAILED"), ended("//a:flaky", "FLAKY"))
        self.assertEqual(self.lines(path, "3"), ["1 3", "//a:bad - failed", "//a:flaky - flaky",
                                                 "//a:unbuilt - not built or not run"])

    def test_a_failure_without_a_test_counts(self):
        self.assertEqual(self.lines(self.record("quick.json"), "0"), ["0 0"])
        self.assertEqual(self.lines(self.record("quick.json"), "1"), ["0 1", "bazel - ended with status 1"])
        self.assertEqual(self.lines(os.path.join(self.folder, "missing"), "37"), ["0 1", "bazel - ended with status 37"])

    def test_the_slowest_of_all_runs_come_first(self):
        quick = self.record("quick.json", ran("//a:slow", 9000), ran("//a:quick", 10), ran("//a:split", 4000, shard=1),
                            ran("//a:split", 6500, shard=2), ran("//a:kept", 99000, cachedLocally=True))
        tsan = self.record("tsan.json", ran("//a:slow", 31000, attempt=1), ran("//a:slow", 30000, attempt=2))
        self.assertEqual([line.split() for line in self.lines("--slowest", "3", quick, tsan)],
                         [["30.0", "s", "tsan", "//a:slow"], ["10.5", "s", "quick", "//a:split", "(2", "shards)"],
                          ["9.0", "s", "quick", "//a:slow"]])

    def failed(self, label, shard, *log):
        path = os.path.join(self.folder, f"a log {shard}")
        with open(path, "w", encoding="utf-8") as opened:
            opened.writelines(line + "\n" for line in log)
        return ran(label, 10, shard=shard, status="FAILED",
                   testActionOutput=[{"name": "test.log", "uri": "file://" + path.replace(" ", "%20")}])

    def test_why_shows_complaints_and_not_what_passed(self):
        passed = [f"[       OK ] Some.Thing{i} (0 ms)" for i in range(100)]
        path = self.record("asan.json", ran("//a:good", 10),
                           self.failed("//a:bad", 2, *passed, "a.cc:7: Failure", "Expected: 1", *passed, "a.cc:9: Failure"),
                           self.failed("//a:killed", 1, *passed, "the last words"))
        lines = self.lines("--why", "12", path)
        self.assertEqual(lines[:3], ["asan //a:bad, shard 2: failed", "  a.cc:7: Failure", "  Expected: 1"])
        self.assertEqual(lines[11:14], ["  a.cc:9: Failure", "asan //a:killed, shard 1: failed",
                                        "  [       OK ] Some.Thing89 (0 ms)"])
        self.assertEqual(lines[-1], "  the last words")


if __name__ == "__main__":
    sys.exit(unittest.main())
