"""One rank of a comparison of PyTorch's all_reduce of CUDA tensors over Annulus, gloo and NCCL: torch_times.py FOLDER RANK SIZE [nccl] [most=BYTES].

All back ends are in one process and take turns, so that they meet the same machine. NCCL refuses ranks that share a GPU unless each claims to be another
host, so it is made to go through sockets, as it would between hosts; it takes part only with "nccl". Rank 0 prints a row for each size: the median in
microseconds of a call with the wait for the GPU, of each back end. DEVICE=cpu tries it without a GPU."""

import datetime
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import torch_rank

DEVICE = os.environ.get("DEVICE", "cuda")
SIZES = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
ROUNDS = 5
ROUND_SECONDS = 0.15  # Time of a back end in a round, or of one call.


def wait_for_gpu():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def make(back_ends, size):
    groups = {}
    for name in back_ends:
        groups[name] = dist.new_group(list(range(size)), backend=name, timeout=datetime.timedelta(seconds=30))
        tensor = torch.ones(1000, device=DEVICE)
        dist.all_reduce(tensor, group=groups[name])
        assert (tensor == size).all().item(), name
    return groups


def calls_for(group, tensor, control):
    """How many calls take about a round's time; the same on all ranks."""
    wait_for_gpu()
    begin = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(tensor, group=group)
    wait_for_gpu()
    calls = torch.tensor([min(300, max(2, int(ROUND_SECONDS * 3 / (time.perf_counter() - begin))))])
    dist.broadcast(calls, 0, group=control)
    return int(calls)


def measured(group, tensor, calls, control):
    dist.barrier(group=control)
    times = []
    for _ in range(calls):
        wait_for_gpu()
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        wait_for_gpu()
        times.append(time.perf_counter() - begin)
    return times


def main():
    folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    back_ends = ["annulus", "gloo"] + ["nccl"] * ("nccl" in sys.argv)
    most = next((int(each[5:]) for each in sys.argv if each.startswith("most=")), SIZES[-1])
    # Each its own host, so that NCCL goes through sockets.
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    torch_rank.init("gloo", folder, rank, size, seconds=60)
    control = dist.new_group(list(range(size)), backend="gloo")  # Tensors of the host.
    groups = make(back_ends, size)
    if rank == 0:
        print(f"| bytes | {' | '.join(f'{name}, us' for name in back_ends)} | {' | '.join(f'{name} / annulus' for name in back_ends[1:])} |", flush=True)
    for nbytes in (each for each in SIZES if each <= most):
        tensor = torch.zeros(nbytes // 4, device=DEVICE)
        counts = {name: calls_for(groups[name], tensor, control) for name in back_ends}
        times = {name: [] for name in back_ends}
        for _ in range(ROUNDS):
            for name in back_ends:
                times[name] += measured(groups[name], tensor, counts[name], control)
        medians = {name: statistics.median(times[name]) * 1e6 for name in back_ends}
        if rank == 0:
            ratios = [f"{medians[name] / medians['annulus']:.2f}" for name in back_ends[1:]]
            print(f"| {nbytes} | {' | '.join(f'{medians[name]:.1f}' for name in back_ends)} | {' | '.join(ratios)} |", flush=True)
    dist.barrier(group=control)
    for name in back_ends:
        dist.destroy_process_group(groups[name])
    print("passed", flush=True)
    sys.stdout.flush()
    os._exit(0)  # What NCCL leaves behind is not looked at.


if __name__ == "__main__":
    main()
