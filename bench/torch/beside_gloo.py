#!/usr/bin/env python3
"""Times PyTorch's all_reduce of CPU tensors over Annulus and over PyTorch's own gloo, in turns on the same machine.

  beside_gloo.py --python PYTHON [--ranks 2,4] [--rounds 3] [--bytes 4,1K,64K,1M,16M]

PYTHON is that of an environment with PyTorch (third_party/setup/install_torch) in which the wheel of annulus-torch is installed. Prints a row for each form
of the call, size and number of processes: median (of the rounds' medians) and least time of both in microseconds, and the two ratios. "async" starts a
call and waits for it.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

FORMS = ("blocking", "async")


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


def job(python, size, back_end, sizes):
    """{(form, bytes): (median, least) in us}."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([python, __file__, "rank", str(rank), str(size), str(port), back_end, ",".join(map(str, sizes))],
                              stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True) for rank in range(size)]
    output = ranks[0].communicate(timeout=600)[0]
    if any(each.wait(60) for each in ranks):
        sys.exit(f"{back_end}: a process failed")
    rows = [line.split()[1:] for line in output.splitlines() if line.startswith("measured ")]
    return {(name, int(nbytes)): (float(median), float(least)) for name, nbytes, median, least in rows}


def bytes_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def main():
    if sys.argv[1:2] == ["rank"]:
        rank, size, port = map(int, sys.argv[2:5])
        return one_rank(rank, size, port, sys.argv[5], list(map(int, sys.argv[6].split(","))))
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", default="4,1K,64K,1M,16M")
    arguments = parser.parse_args()
    sizes = {text: bytes_of(text) for text in arguments.bytes.split(",")}
    for size in map(int, arguments.ranks.split(",")):
        rounds = {"gloo": [], "annulus": []}
        for _ in range(arguments.rounds):
            for back_end, results in rounds.items():
                results.append(job(arguments.python, size, back_end, list(sizes.values())))
        print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
        for name in FORMS:
            for text, nbytes in sizes.items():
                both = [[each[name, nbytes] for each in rounds[back_end]] for back_end in rounds]
                medians = [statistics.median(median for median, _ in each) for each in both]
                leasts = [min(least for _, least in each) for each in both]
                print(f"| {size} | {name} | {text} | {medians[0]:.1f} | {medians[1]:.1f} | {medians[0] / medians[1]:.1f} | "
                      f"{leasts[0]:.1f} | {leasts[1]:.1f} | {leasts[0] / leasts[1]:.1f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
