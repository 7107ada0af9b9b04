"""One rank of a job on CUDA tensors that loses a rank, on the stand-in for CUDA's driver: torch_cuda_killed.py FOLDER RANK SIZE FORM BLOCKING. The last
rank kills itself in the third step; each of the others prints the time from then until its exception, in milliseconds, where it was thrown, and its
text. BLOCKING: the value of TORCH_ANNULUS_BLOCKING_WAIT."""

import os
import signal
import sys
import time

from torch_cuda_tensors import cuda, gpu  # First: it loads the driver.

import torch
import torch.distributed as dist

import torch_rank


def main():
    folder, rank, size, form, blocking = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    os.environ.update(TORCH_ANNULUS_FORM=form, TORCH_ANNULUS_BLOCKING_WAIT=blocking)
    torch_rank.init("annulus", folder, rank, size)
    mark, where, tensors = os.path.join(folder, "killed"), "", []
    try:
        for step in range(10000):
            if step == 3 and rank == size - 1:
                with open(mark, "w", encoding="utf-8") as opened:
                    opened.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            where = "in a call"
            tensors.append(cuda(torch.ones(1000)))
            work = dist.all_reduce(tensors[-1], async_op=True)
            where = "in wait"
            work.wait()
            if step < 3:
                assert tensors[-1].cpu().eq(size).all()
    except dist.DistBackendError as error:
        with open(mark, encoding="utf-8") as opened:
            print(round(1000 * (time.time() - float(opened.read()))), error, flush=True)
    if where != "in wait" and blocking == "1":
        print("no error", where, flush=True)
        os._exit(1)
    tensors[-1].cpu()  # The streams go on.
    dist.destroy_process_group()
    del tensors, work
    gpu.synchronize(0)
    if gpu.pending() or gpu.violations() or gpu.threads() > 1:
        print("left over:", gpu.pending(), gpu.violations(), gpu.threads(), flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
