"""One rank of a training that torchrun starts on two hosts (torch_hosts.py)."""

import datetime
import os
import socket

import torch
import torch.distributed as dist

import torch_rank


def main():
    torch_rank.register_if_old()
    dist.init_process_group("annulus", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 10))
    model(torch.full((2, 1000), float(rank))).sum().backward()
    expected = torch.full((10, 1000), 2 * sum(range(size)) / size)
    torch.testing.assert_close(model.module.weight.grad, expected)
    names = [None] * size
    dist.all_gather_object(names, socket.gethostname())
    assert names == [f"host{1 + 2 * other // size}" for other in range(size)], names
    # One write: torchrun has all ranks' output in one stream.
    os.write(1, f"rank {rank} of {size} on {socket.gethostname()} is content\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
