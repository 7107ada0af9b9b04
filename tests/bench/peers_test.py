#!/usr/bin/env python3
"""bench/peers on tiny sizes: every installed library's results are right, the JSON is whole, and the checks bite. Times
mean nothing here: rounds count whatever else runs."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.abspath(os.path.join(os.environ.get("TEST_SRCDIR", "."), os.environ.get("TEST_WORKSPACE", ".")))
sys.path.insert(0, os.path.join(ROOT, "bench/peers"))

import machine  # noqa: E402
import rounds  # noqa: E402
import summary  # noqa: E402

RUN_S = 240
TINY = ["--ranks", "2", "--rounds", "1", "--batches", "2", "--batch-seconds", "0.001", "--others", "1000", "--minutes", "3"]
SETUP_FIELDS = {"transport", "ranks", "libraries", "left_out", "failed", "wrong", "unmeasured_cases", "rounds_by_label",
                "thrown_away", "rows", "rounds"}
ROW_FIELDS = {"comparison", "collective", "form", "bytes", "label", "rounds", "results", "best_default", "best_tuned",
              "best_peer", "limits"}
RESULT_FIELDS = {"group", "median_us", "min_us", "max_us", "rounds", "busbw_gb_per_s"}
# What each build supports, in place of a library's own word for it.
STARTED = {"iallreduce", "pingpong", "ipingpong", "sendrecv", "isendrecv"}
WITHOUT = {"gloo": {"reduce_scatter", *STARTED}, "limit": STARTED}


def compare(folder, *arguments):
    """Runs the program; returns (exit status, output, document)."""
    path = os.path.join(folder, "results.json")
    command = [sys.executable, os.path.join(ROOT, "bench/peers/compare"), "--bin", ROOT, "--json", path, *TINY, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S, check=False)
    document = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as opened:
            document = json.load(opened)
    return done.returncode, done.stdout, document


class CompareTest(unittest.TestCase):
    def test_every_library_sums_right_and_the_document_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            status, output, document = compare(folder, "--sizes", "8,4K", "--collectives", "all")
        self.assertEqual(status, 0, output)
        self.assertEqual(document["wrong"], 0, output)
        self.assertLessEqual({"schema", "machine", "settings", "near_below_ns", "seconds", "wrong", "setups"}, set(document))
        self.assertEqual([setup["transport"] for setup in document["setups"]], ["shm", "tcp"])
        for setup in document["setups"]:
            self.check_setup(setup, output)

    def check_setup(self, setup, output):
        self.assertLessEqual(SETUP_FIELDS, set(setup))
        self.assertEqual((setup["failed"], setup["wrong"], setup["thrown_away"]), ({}, {}, 0), output)
        self.assertIn("annulus", setup["libraries"])
        # What is not installed is named with the reason; all else takes part.
        known = {"annulus", "openmpi", "openmpi_tuned", "mpich", "mpich_tuned"}
        known |= {"gloo", "openmpi_cubic", "gloo_cubic", "limit_sockets"} if setup["transport"] == "tcp" else \
            {"limit_exchange", "limit_copy"}
        self.assertEqual(set(setup["libraries"]) | set(setup["left_out"]), known)
        # Sizes, forms: broadcast and messages have one form, others two.
        cells = {(row["comparison"], row["collective"], row["form"], row["bytes"]) for row in setup["rows"]}
        self.assertEqual(len(cells), 2 * (5 * 2 + 1 + 4), output)
        for row in setup["rows"]:
            self.check_row(row, setup["libraries"])

    def check_row(self, row, libraries):
        self.assertLessEqual(ROW_FIELDS, set(row))
        self.assertIn(row["label"], ("near", "far", "mixed"))
        for name, result in row["results"].items():
            self.assertLessEqual(RESULT_FIELDS, set(result))
            self.assertGreater(result["median_us"], 0, name)
        if row["comparison"] == "types":
            self.assertEqual(set(row["results"]), {"annulus", "annulus_bfloat16", "annulus_float16"})
            self.assertEqual(set(row["relative_to_float32"]), {"annulus_bfloat16", "annulus_float16"})
            return
        expected = {name for name in libraries if row["collective"] not in WITHOUT.get(name.partition("_")[0], ())}
        if row["collective"] != "allreduce":
            expected.discard("limit_exchange")
        self.assertEqual(set(row["results"]), expected)
        self.assertEqual(set(row["limits"]), {name for name in expected if name.startswith("limit")})
        for name in row["limits"]:
            self.assertGreater(row["limits"][name]["share"], 0)

    def test_a_wrong_result_fails_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            status, output, document = compare(folder, "--transports", "shm", "--sizes", "4K", "--libraries",
                                               "annulus,limit_exchange", "--corrupt", "limit_exchange")
        self.assertEqual(status, 3, output)
        self.assertEqual(document["setups"][0]["wrong"], {"limit_exchange": 6}, output)  # 3 in each form.

    def test_the_time_bounds_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            status, output, document = compare(folder, "--transports", "shm", "--libraries", "annulus", "--minutes", "0.0001")
        self.assertEqual(status, 0, output)
        self.assertEqual(document["setups"][0]["unmeasured_cases"], 18, output)

    def test_wrong_arguments_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments in (["--sizes", "1"], ["--transports", "pigeon"], ["--libraries", "nccl"], ["--ranks", "1"]):
                status, output, _ = compare(folder, *arguments)
                self.assertEqual(status, 2, output)
                self.assertIn(arguments[0], output)


class LabelTest(unittest.TestCase):
    def test_a_round_is_called_after_both_looks_and_the_load(self):
        self.assertEqual(machine.label(50, 60, 0.02, 0.01, 0.1), "near")
        self.assertEqual(machine.label(245, 260, 0.02, 0.01, 0.1), "far")
        self.assertEqual(machine.label(50, 245, 0.02, 0.01, 0.1), "mixed")
        self.assertEqual(machine.label(50, 50, 0.5, 0.5, 0.1), "disturbed")


class SummaryTest(unittest.TestCase):
    def test_only_like_rounds_are_compared_and_disturbed_ones_count_nowhere(self):
        case = rounds.Case("libraries", "allreduce", "out", 1000)
        made = [("near", 10, 20), ("near", 12, 18), ("near", 11, 33), ("far", 100, 50), ("disturbed", 1, 1)]
        setup = rounds.Setup([], None, None, print)
        setup.rounds = [{"case": case, "label": label, "us": {"annulus": [own], "openmpi": [other], "limit_copy": [5.5]}}
                        for label, own, other in made]
        setup.jobs = [type("Job", (), {"name": name, "library": type("Library", (), {"group": group})})
                      for name, group in (("annulus", "annulus"), ("openmpi", "default"), ("limit_copy", "limit"))]
        near, far = summary.rows(setup, [case], 2)
        self.assertEqual((near["label"], near["rounds"], far["label"], far["rounds"]), ("near", 3, "far", 1))
        self.assertEqual(near["results"]["annulus"]["median_us"], 11)
        self.assertEqual(near["best_default"], {"name": "openmpi", "ratio": 20 / 11})
        self.assertEqual(near["best_peer"], near["best_default"])
        self.assertIsNone(near["best_tuned"])
        self.assertEqual(near["limits"]["limit_copy"]["share"], 0.5)
        self.assertEqual(far["best_default"]["ratio"], 0.5)
        self.assertAlmostEqual(near["results"]["annulus"]["busbw_gb_per_s"], 1000 / 11 / 1e3)


if __name__ == "__main__":
    unittest.main()
