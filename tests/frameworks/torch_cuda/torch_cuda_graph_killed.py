"""One rank of a job that replays a CUDA graph with calls and loses a rank: torch_cuda_graph_killed.py FOLDER RANK SIZE FORM. The last rank kills itself
before its third replay; each of the others prints the time from then until it knew, in milliseconds, and the text of the exception."""

import os
import signal
import sys
import time

from torch_cuda_tensors import captured, cuda, gpu, stream  # First: it loads the driver.

import torch
import torch.distributed as dist

import torch_rank


def main():
    folder, rank, size, form = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ.update(TORCH_ANNULUS_FORM=form)
    torch_rank.init("annulus", folder, rank, size)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    mark, handle = os.path.join(folder, "killed"), gpu.new_stream(0)
    with stream(handle):
        tensors = [cuda(torch.zeros(1000)) for _ in range(2)]
    with captured(handle) as graph:
        work = dist.all_reduce(tensors[0], async_op=True)
        dist.all_reduce(tensors[1])
        work.wait()
    with stream(handle):
        for step in range(10000):
            if step == 3 and rank == size - 1:
                with open(mark, "w", encoding="utf-8") as opened:
                    opened.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            for tensor in tensors:
                tensor.copy_(torch.ones(1000))
            graph.replay()
            sums = [tensor.cpu() for tensor in tensors]  # The replay ends.
            if backend.get_error().name != "SUCCESS":
                break
            assert all(each.eq(size).all() for each in sums)
        try:
            dist.all_reduce(tensors[0])
        except dist.DistBackendError as error:
            with open(mark, encoding="utf-8") as opened:
                print(round(1000 * (time.time() - float(opened.read()))), error, flush=True)
        graph.replay()
        tensors[0].cpu()  # Launches pass from now on.
    dist.destroy_process_group()
    with stream(handle):
        graph.replay()
        tensors[0].cpu()
    graph.reset()
    gpu.synchronize(0)
    deadline = time.monotonic() + 60
    while gpu.user_objects() and time.monotonic() < deadline:
        time.sleep(0.01)
    if gpu.pending() or gpu.violations() or gpu.threads() > 1 or gpu.user_objects():
        print("left over:", gpu.pending(), gpu.violations(), gpu.threads(), gpu.user_objects(), flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
