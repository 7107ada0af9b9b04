"""One rank of a training on a GPU that loses a rank: torch_model_killed.py FOLDER RANK SIZE FORM. The last rank kills itself in the third step; each of the
others prints the time from then until its exception, in milliseconds, and its text, and must have it within 10 s. Then the GPU must still
work. DEVICE=cpu tries it without a GPU."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import torch_rank

DEVICE = os.environ.get("DEVICE", "cuda")


def steps(model, rank, size, mark):
    for step in range(100_000):
        if step == 3 and rank == size - 1:
            with open(mark + ".new", "w", encoding="utf-8") as opened:
                opened.write(str(time.time()))
            os.rename(mark + ".new", mark)
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(4, 500, device=DEVICE)).sum().backward()
        if os.path.exists(mark):
            with open(mark, encoding="utf-8") as opened:
                if time.time() - float(opened.read()) > 10:
                    print("no error within 10 s", flush=True)
                    os._exit(1)


def main():
    folder, rank, size, form = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ["TORCH_ANNULUS_FORM"] = form
    mark = os.path.join(folder, "killed")
    torch_rank.init("annulus", folder, rank, size, seconds=60)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(500, 500).to(DEVICE), device_ids=[0] if DEVICE == "cuda" else None)
    try:
        steps(model, rank, size, mark)
    except RuntimeError as error:
        with open(mark, encoding="utf-8") as opened:
            late = round(1000 * (time.time() - float(opened.read())))
        print(f"rank {rank} was told after {late} ms: {type(error).__name__}: {error}", flush=True)
        if f"rank {size - 1} died" not in str(error):
            os._exit(1)
    assert (torch.ones(1000, device=DEVICE) + 1).sum().item() == 2000  # The GPU goes on.
    dist.destroy_process_group()
    assert (torch.ones(1000, device=DEVICE) + 1).sum().item() == 2000
    print("passed", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
