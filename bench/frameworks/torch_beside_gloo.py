#!/usr/bin/env python3
"""Times PyTorch's all_reduce of CPU tensors over Annulus and over PyTorch's own gloo, in turns on the same machine.

  torch_beside_gloo.py --python PYTHON [--ranks 2,4] [--rounds 3] [--bytes 4,1K,64K,1M,16M] [--also TORCH_ANNULUS_REGISTER_BYTES=1000000000]

PYTHON is that of an environment with PyTorch (third_party/setup/install_torch) in which the wheel of annulus-torch is installed. Prints a row for each form
of the call, size and number of processes: median (of the rounds' medians) and least time of both in microseconds, and the two ratios. "async" starts a
call and waits for it.
"""

import statistics
import time

import beside_gloo

def one_rank(rank, size, port, back_end, sizes):
    """A process of the job; rank 0 prints "measured form bytes median least" lines."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(back_end, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for nbytes in sizes:
        tensor = torch.zeros(nbytes // 4)
        forms = {
            "blocking": lambda data=tensor: dist.all_reduce(data),
            "async": lambda data=tensor: dist.all_reduce(data, async_op=True).wait(),
        }
        calls = 300 if nbytes <= 65536 else 40 if nbytes <= 1 << 20 else 12
        for name, call in forms.items():
            for _ in range(5):
                call()
            times = []
            for _ in range(calls):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
            if rank == 0:
                print("measured", name, nbytes, statistics.median(times) * 1e6, min(times) * 1e6, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    beside_gloo.main(one_rank, "4,1K,64K,1M,16M")
