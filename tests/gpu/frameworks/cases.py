"""One rank that runs the functions case_NAME(rank, size) of a module, and goes on with the next one, in a new process group, where one has failed on some
rank: cases.py FOLDER RANK SIZE FORM MODULE [PREFIX]. PREFIX: that of the functions' names, if it is not case_. Prints "passed NAME" or "failed NAME" with the
traceback."""

import contextlib
import importlib
import os
import pathlib
import sys
import time
import traceback

import torch
import torch.distributed as dist

import torch_rank

CALL_SECONDS = 20  # The timeout of calls.
AGREE_SECONDS = 30


def agreed(folder, name, rank, size, ok):
    """Whether the case has passed on all ranks. Waits for them."""
    mark = pathlib.Path(folder, f"{name}.{rank}")
    new = pathlib.Path(folder, f"{name}.{rank}.new")
    new.write_text(str(ok), encoding="utf-8")
    os.rename(new, mark)
    outcomes, deadline = [], time.monotonic() + AGREE_SECONDS
    for other in range(size):
        theirs = pathlib.Path(folder, f"{name}.{other}")
        while not theirs.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        outcomes.append(theirs.exists() and theirs.read_text(encoding="utf-8") == "True")
    return all(outcomes)


def passes(case, rank, size):
    begin = time.monotonic()
    try:
        case(rank, size)
        print(f"passed {case.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        return True
    except Exception:  # pylint: disable=broad-except
        print(f"failed {case.__name__} ({time.monotonic() - begin:.1f} s)", traceback.format_exc(), flush=True)
        with contextlib.suppress(Exception):  # The others are told at once.
            device = torch.device(os.environ.get("DEVICE", "cuda"))
            dist.distributed_c10d._get_default_group()._get_backend(device).abort()
        return False


def main():
    folder, rank, size, form, name, *prefix = sys.argv[1:]
    rank, size, prefix = int(rank), int(size), (prefix or ["case_"])[0]
    os.environ["TORCH_ANNULUS_FORM"] = form
    module, failed = importlib.import_module(name), []
    for case in [each for found, each in sorted(vars(module).items()) if found.startswith(prefix)]:
        if not dist.is_initialized():
            meeting = os.path.join(folder, f"after-{len(failed)}")
            os.makedirs(meeting, exist_ok=True)
            torch_rank.init("annulus", meeting, rank, size, seconds=CALL_SECONDS)
        if not agreed(folder, case.__name__, rank, size, passes(case, rank, size)):
            failed.append(case.__name__)
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
    if dist.is_initialized():
        dist.destroy_process_group()
    if failed:
        print("failed on some rank:", *failed, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
