#!/usr/bin/env python3
"""bench/scaling on few hosts: the numbers are complete and believable, and nothing stays behind, however a run ends."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCALING = os.path.abspath(os.environ["SCALING"])
PROGRAMS = os.path.abspath(os.path.dirname(os.environ["PROGRAMS"].split()[0]))
MARK = f"SCALING_TEST={os.getpid()}"  # In the environment of the run and of all that it starts.
LONG = ["--ranks", "4", "--rate", "8mbit", "--sizes", "1K,4M", "--libraries", "annulus", "--minutes", "5"]


def start(*words, prefix=(), **variables):
    name, value = MARK.split("=")
    return subprocess.Popen([*prefix, sys.executable, SCALING, "--programs", PROGRAMS, *words],
                            env={**os.environ, name: value, **variables}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def predict(path, *words):
    """What `predict` writes to a file at `path`."""
    subprocess.run([os.path.join(os.path.dirname(SCALING), "predict"), "--model", f"{PROGRAMS}/model", "--json", path, *words],
                   stdout=subprocess.DEVNULL, check=True, timeout=60)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def marked(program=""):
    """The processes of the run that is marked, by pid, those of `program` if it is given."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                if MARK.encode() in environ.read().split(b"\0") and program.encode() in cmdline.read():
                    found.append(int(pid))
        except OSError:  # It has just ended.
            continue
    return found


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        select.select([], [], [], 0.02)


def namespaces_forbidden():
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return probe.stderr.strip() if probe.returncode else ""


class Refusals(unittest.TestCase):
    def refuse(self, status, text, *words, prefix=()):
        run = start(*words, prefix=prefix)
        self.assertIn(text, run.communicate(timeout=60)[1])
        self.assertEqual(run.returncode, status)

    def test_wrong_words_are_named(self):
        self.refuse(2, "'x' is not a size", "--sizes", "1K,x")
        self.refuse(2, "'100' is not a rate", "--rate", "100")
        self.refuse(2, "from 2 to 1024", "--ranks", "1")
        self.refuse(2, "choose from annulus, ring, gloo, server", "--libraries", "other")
        self.refuse(2, "name a file", "--plot", "a.png")

    def test_without_rights_it_says_what_is_needed(self):
        if os.geteuid() != 0:
            self.refuse(3, "run it as root")
        else:
            self.refuse(3, "run it as root", prefix=["setpriv", "--bounding-set=-sys_admin,-net_admin"])


class Prediction(unittest.TestCase):
    def test_more_hosts_take_longer_and_log_steps_win_with_few_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            entries = predict(folder + "/prediction.json")["prediction"]
        for size in (1 << 10, 8 << 20, 512 << 20):
            times = [entry["seconds"]["ring"] for entry in entries if entry["bytes"] == size]
            self.assertEqual(len(times), 11)
            self.assertEqual(times, sorted(times))
        for entry in entries:
            if entry["bytes"] == 1 << 10 and entry["hosts"] >= 64:
                self.assertLess(entry["seconds"]["log_exchange"], entry["seconds"]["ring"] / 5)

    def test_fitting_what_it_does_not_model_is_refused(self):
        settings = {"annulus": {"ANNULUS_SMALL_BYTES": "0"}, "ranks_per_host": 2}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"settings": settings, "parts": []}, file)
            file.flush()
            refused = subprocess.run([os.path.join(os.path.dirname(SCALING), "predict"), "--model", f"{PROGRAMS}/model", "--fit", file.name],
                                     capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("several ranks per host", refused.stderr)


@unittest.skipIf(namespaces_forbidden(), f"NO NAMESPACES HERE: {namespaces_forbidden()}")
class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = folder.name + "/result.json"
        self.plot = folder.name + "/result.svg"

    def tearDown(self):
        until(lambda: not marked(), 10, "all processes gone")

    def finish(self, run, status):
        out, err = run.communicate(timeout=120)
        self.assertEqual(run.returncode, status, out + err)
        return out, err

    def test_all_libraries_are_measured(self):
        out, _ = self.finish(start("--ranks", "2,4", "--rate", "400mbit", "--sizes", "1K,64K", "--minutes", "2", "--json", self.json,
                                   "--plot", self.plot, ANNULUS_SMALL_BYTES="0"), 0)
        with open(self.json, encoding="utf-8") as file:
            result = json.load(file)
        with open(self.plot, encoding="utf-8") as file:
            self.assertIn("<svg", file.read())
        self.assertEqual(result["settings"]["link_bytes_per_second"], 5e7)
        self.assertEqual([part["ranks"] for part in result["parts"]], [2, 4])
        for part in result["parts"]:
            self.assertEqual([row["bytes"] for row in part["rows"]], [1024, 65536])
            self.assertIn(f"{part['ranks']} hosts, 400mbit:", out)
            for library in ("annulus", "gloo", "server"):
                self.assertGreater(part["start"][library]["seconds"], 0)
                self.assertGreater(part["start"][library]["private_kib"], 0)
                for row in part["rows"]:
                    cell = row["cells"][library]
                    bandwidth = 2 * (part["ranks"] - 1) / part["ranks"] * row["bytes"] / cell["seconds"]
                    self.assertAlmostEqual(cell["efficiency"], bandwidth / 5e7)
            # 1.1: what the links let pass at once after they were idle.
            self.assertLess(part["rows"][1]["cells"]["annulus"]["efficiency"], 1.1)
        prediction = predict(self.json + ".prediction", "--fit", self.json, "--plot", self.plot)
        self.assertEqual([(row["hosts"], row["bytes"]) for row in prediction["comparison"]],
                         [(2, 1024), (2, 65536), (4, 1024), (4, 65536)])

    def test_hosts_of_several_ranks_carry_the_data_once_in_two_levels(self):
        out, _ = self.finish(start("--ranks", "2", "--ranks-per-host", "2", "--in-turn", "--rate", "100mbit", "--sizes", "1M", "--libraries",
                          "annulus,ring", "--minutes", "2", "--json", self.json, "--plot", self.plot), 0)
        self.assertIn("2 hosts, 100mbit, 2 ranks per host, in turn:", out)
        with open(self.plot, encoding="utf-8") as file:
            self.assertIn("2 ranks per host, in turn", file.read())
        with open(self.json, encoding="utf-8") as file:
            cells = json.load(file)["parts"][0]["rows"][0]["cells"]
        # A third of what goes round the ring, each hop of which leaves its host.
        self.assertLess(cells["annulus"]["seconds"], 0.6 * cells["ring"]["seconds"])
        self.assertGreater(cells["annulus"]["efficiency"], 0.5)

    def test_a_rank_killed_between_two_levels_ends_the_run_and_is_named(self):
        run = start(*LONG[2:], "--ranks", "2", "--ranks-per-host", "2", "--json", self.json)
        self.first_line(run, 2)
        os.kill(marked("annulus_rank")[-1], signal.SIGKILL)
        _, err = self.finish(run, 1)
        self.assertRegex(err, r"2 hosts: Annulus: rank \d ended")

    def first_line(self, run, hosts=4):
        self.assertIn(f"{hosts} hosts    1 KiB", run.stdout.readline())
        until(lambda: len(marked("annulus_rank")) == 4, 10, "four ranks")

    def test_a_killed_rank_ends_the_run_and_is_named(self):
        run = start(*LONG, "--json", self.json)
        self.first_line(run)
        os.kill(marked("annulus_rank")[0], signal.SIGKILL)
        _, err = self.finish(run, 1)
        self.assertRegex(err, r"4 hosts: Annulus: rank \d ended")
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["parts"][0]["rows"]), 1)

    def test_an_interrupted_run_writes_what_it_has(self):
        for group in (True, False):  # As a terminal does it; and the first process alone.
            run = start(*LONG, "--json", self.json)
            self.first_line(run)
            (os.killpg if group else os.kill)(run.pid, signal.SIGINT)
            out, err = self.finish(run, 130)
            self.assertIn("interrupted", err)
            self.assertIn("| 1 KiB |", out)
            until(lambda: not marked(), 10, "all processes gone")

    def test_a_killed_run_leaves_nothing(self):
        run = start(*LONG)
        self.first_line(run)
        run.kill()
        run.communicate(timeout=20)


if __name__ == "__main__":
    unittest.main()
