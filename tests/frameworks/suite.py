"""What the tests of all frameworks share: checks that are counted, and ranks as processes of a framework's own environment.

A test has --wheel, --python (of an environment with the framework) and perhaps --counts, a file that gets "PASSED FAILED", and --driver, the stand-in
for CUDA's driver."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
PATIENCE_SECONDS = 500  # Longer than the ranks of a case take on a busy machine.
VERDICT_MS = 3000
NO_LAB = 77  # The status of a script for which there can be no network namespaces.


class Suite:
    def __init__(self, python, site, folder, driver=None):
        self.python, self.site, self.folder, self.driver = python, pathlib.Path(site), pathlib.Path(folder), driver
        self.passed, self.failed = 0, 0
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        self.environment = {**keep, "PYTHONPATH": f"{site}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}

    def count(self, name, ok, detail=""):
        print("passed" if ok else "FAILED", name, "" if ok else detail, flush=True)
        self.passed += ok
        self.failed += not ok

    def ranks(self, script, size, *arguments):
        """[(status, output)] of the ranks, which get a new folder, their rank, the size and the arguments."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{pathlib.Path(script).name}-{size}-", dir=self.folder))
        started = []
        for rank in range(size):
            command = [self.python, str(HERE / script), *map(str, (folder, rank, size, *arguments))]
            with open(folder / f"{rank}.txt", "wb") as output:
                started.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT))
        outcomes = []
        for rank, process in enumerate(started):
            try:
                status = process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                status = f"no end within {PATIENCE_SECONDS} s"
                process.wait()
            outcomes.append((status, (folder / f"{rank}.txt").read_text(encoding="utf-8", errors="replace")))
        return outcomes

    def launched(self, size, *command, **settings):
        """(status, [output of each rank]) of a program that annulus-run starts."""
        done = subprocess.run([str(self.site / "bin/annulus-run"), "-np", str(size), self.python, *map(str, command)],
                              env={**self.environment, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=PATIENCE_SECONDS, check=False)
        outputs = ["".join(re.findall(rf"^\[{rank}\] (.*\n)", done.stdout, re.MULTILINE)) for rank in range(size)]
        return done.returncode, outputs

    def cases(self, script, size, outputs, what=""):
        """Counts the cases of a script: each must have passed on all ranks, whose outputs these are. what: more for the names of the checks."""
        for case in re.findall(r"^def (case_\w+)", (HERE / script).read_text(encoding="utf-8"), re.MULTILINE):
            self.count(f"{case} with {size} ranks{what}", all(f"passed {case}\n" in output for output in outputs),
                       "\n".join(f"--- rank {rank}\n{output[-2000:]}" for rank, output in enumerate(outputs)))

    def on_two_hosts(self, name, script, *arguments):
        """Counts a script that is its own lab (hosts.py). It gets the framework's Python, the folder with the wheel, and the arguments."""
        done = subprocess.run(["/usr/bin/python3", str(HERE / script), self.python, str(self.site), *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=PATIENCE_SECONDS, check=False)
        if done.returncode == NO_LAB:
            print(done.stdout, flush=True)
        else:
            self.count(name, done.returncode == 0, done.stdout)

    def names_the_killed(self, outcomes):
        """The last rank has killed itself; the others have printed milliseconds and an exception that names it."""
        size = len(outcomes)
        for rank, (status, output) in enumerate(outcomes[:-1]):
            found = re.search(rf"^(\d+) .*rank {size - 1}\b", output, re.MULTILINE)
            ok = status == 0 and found is not None and int(found.group(1)) <= VERDICT_MS
            self.count(f"rank {rank} of {size} names the killed rank in time", ok, f"{status} {output[-2000:]}")
            if found:
                print(f"  after {found.group(1)} ms", flush=True)


def wait_for_others(folder, rank, ranks):
    """In a rank that has failed: waits until all of `ranks` are here, so that no error of theirs is that they lost this one. The first
    of them, whose process may have a service for the others, then lets them go before it."""
    deadline = time.monotonic() + 100

    def meet(mark, awaited):
        pathlib.Path(folder, f"{mark}{rank}").touch()
        while time.monotonic() < deadline and not all(pathlib.Path(folder, f"{mark}{each}").exists() for each in awaited):
            time.sleep(0.05)

    meet("done", ranks)
    meet("gone", ranks if rank == min(ranks) else [])
    if rank == min(ranks):
        time.sleep(1)  # They end at once, but after they have said so.


def run(tests, what):
    """Installs the wheel beside the framework and calls tests(suite)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--counts")
    parser.add_argument("--driver")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=f"annulus-{what}-") as folder:
        site = pathlib.Path(folder, "site")
        subprocess.run([arguments.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site), arguments.wheel], check=True)
        suite = Suite(arguments.python, site, folder, arguments.driver)
        tests(suite)
    if arguments.counts:
        pathlib.Path(arguments.counts).write_text(f"{suite.passed} {suite.failed}\n", encoding="utf-8")
    print(f"{suite.passed} passed, {suite.failed} failed")
    sys.exit(1 if suite.failed else 0)
