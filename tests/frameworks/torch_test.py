#!/usr/bin/env python3
"""The back end for PyTorch as a stranger gets it: its wheel, installed beside PyTorch, compiled there, and used by several ranks.

  torch_test.py --wheel WHEEL --python PYTHON [--counts FILE]

PYTHON is that of an environment with PyTorch (third_party/setup/install_torch). Prints a line for each check; FILE gets "PASSED FAILED".
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PATIENCE_SECONDS = 200  # Longer than the ranks of a case take on a busy machine.
VERDICT_MS = 3000


class Suite:
    def __init__(self, python, site, folder):
        self.python, self.folder = python, pathlib.Path(folder)
        self.passed, self.failed = 0, 0
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        self.environment = {**keep, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(self.folder / "compiled")}

    def count(self, name, ok, detail=""):
        print("passed" if ok else "FAILED", name, "" if ok else detail, flush=True)
        self.passed += ok
        self.failed += not ok

    def ranks(self, script, size, *names):
        """[(status, output)] of the ranks; `names` name the run."""
        folder = self.folder / "-".join([script, str(size), *names])
        folder.mkdir()
        command = [self.python, str(HERE / script), str(folder)]
        started = []
        for rank in range(size):
            with open(folder / f"{rank}.txt", "wb") as output:
                started.append(subprocess.Popen([*command, str(rank), str(size)], env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                                                stderr=subprocess.STDOUT))
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

    def compile(self):
        done = subprocess.run([self.python, "-c", "from annulus_torch import native; print(native.load().version())"], env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False)
        self.count("it compiles", done.returncode == 0, done.stdout)
        return done.returncode == 0

    def features(self, size):
        outcomes = self.ranks("torch_ranks.py", size)
        cases = re.findall(r"^def (case_\w+)", (HERE / "torch_ranks.py").read_text(encoding="utf-8"), re.MULTILINE)
        for case in cases:
            self.count(f"{case} with {size} ranks", all(f"passed {case}\n" in output for _, output in outcomes),
                       "\n".join(f"--- rank {rank}\n{output[-2000:]}" for rank, (_, output) in enumerate(outcomes)))
        self.count(f"all {size} ranks end with status 0", all(status == 0 for status, _ in outcomes), [status for status, _ in outcomes])

    def killed(self, size):
        outcomes = self.ranks("torch_killed.py", size)
        for rank, (status, output) in enumerate(outcomes[:-1]):
            found = re.search(rf"^(\d+) .*rank {size - 1}\b", output, re.MULTILINE)
            ok = status == 0 and found is not None and int(found.group(1)) <= VERDICT_MS
            self.count(f"rank {rank} of {size} names the killed rank in time", ok, f"{status} {output[-2000:]}")
            if found:
                print(f"  after {found.group(1)} ms", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--counts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="annulus-torch-") as folder:
        site = pathlib.Path(folder, "site")
        subprocess.run([arguments.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site), arguments.wheel], check=True)
        suite = Suite(arguments.python, site, folder)
        if suite.compile():
            suite.features(2)
            suite.features(3)
            suite.killed(3)
    if arguments.counts:
        pathlib.Path(arguments.counts).write_text(f"{suite.passed} {suite.failed}\n", encoding="utf-8")
    print(f"{suite.passed} passed, {suite.failed} failed")
    sys.exit(1 if suite.failed else 0)


if __name__ == "__main__":
    main()
