"""Runs the functions case_NAME(rank, size) of a script, each on all ranks, and says which have passed."""

import sys
import traceback

import pyannulus


def run(script):
    """`script`: the globals of the script. Ends the process, with status 1 if a case failed."""
    pyannulus.init(timeout_ms=60_000)
    failed = 0
    for name, case in sorted(script.items()):
        if not name.startswith("case_"):
            continue
        try:
            case(pyannulus.rank(), pyannulus.size())
            print("passed", name, flush=True)
        except Exception:  # pylint: disable=broad-except
            failed = 1
            print("failed", name, traceback.format_exc(), flush=True)
    sys.exit(failed)
