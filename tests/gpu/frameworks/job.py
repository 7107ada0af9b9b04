#!/usr/bin/env python3
"""Runs the ranks of a job on this machine: job.py [--killed] SIZE SECONDS SCRIPT [ARGUMENT]...

Each rank is SCRIPT FOLDER RANK SIZE ARGUMENT..., with the Python that runs this and a folder that all share. Prints what rank 0 has printed, and the end of
what others have if something failed. All are killed after SECONDS, and 20 s after one of them has failed. Ends with status 0 when all ranks
have. --killed: the last rank kills itself, and the others are to end with status 0 after that."""

import pathlib
import subprocess
import sys
import tempfile
import time

FAILED_SECONDS = 20
TAIL = 3000


def ended(processes, expected, seconds):
    """Waits for the processes. Returns their statuses; None: had to be killed."""
    deadline = time.monotonic() + seconds
    statuses = [None] * len(processes)
    while None in statuses and time.monotonic() < deadline:
        time.sleep(0.05)
        for rank, process in enumerate(processes):
            if statuses[rank] is None and process.poll() is not None:
                statuses[rank] = process.returncode
                if process.returncode != expected[rank]:
                    deadline = min(deadline, time.monotonic() + FAILED_SECONDS)
    for process in processes:
        process.kill()
        process.wait()
    return statuses


def main():
    arguments = sys.argv[1:]
    dies = arguments[:1] == ["--killed"]
    size, seconds, script, *more = arguments[1 if dies else 0:]
    size = int(size)
    expected = [0] * (size - 1) + [-9 if dies else 0]
    with tempfile.TemporaryDirectory(prefix="annulus-gpu-") as folder:
        outputs = [pathlib.Path(folder, f"{rank}.txt") for rank in range(size)]
        processes = []
        for rank in range(size):
            with open(outputs[rank], "wb") as output:
                processes.append(subprocess.Popen([sys.executable, "-u", script, folder, str(rank), str(size), *more], stdin=subprocess.DEVNULL,
                                                  stdout=output, stderr=subprocess.STDOUT))
        begin = time.monotonic()
        statuses = ended(processes, expected, float(seconds))
        failed = statuses != expected
        for rank, output in enumerate(outputs):
            text = output.read_text(encoding="utf-8", errors="replace")
            if rank == 0 or failed:
                print(f"--- rank {rank}, status {statuses[rank]}\n{text if rank == 0 and not failed else text[-TAIL:]}", flush=True)
        print(f"{pathlib.Path(script).name} {' '.join(more)}: {size} ranks, {time.monotonic() - begin:.1f} s, statuses {statuses} (None: killed at the limit)",
              flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
