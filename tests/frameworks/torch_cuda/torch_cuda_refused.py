"""One rank of a test that the form in Python refuses CUDA tensors: torch_cuda_refused.py FOLDER RANK SIZE FORM."""

from torch_cuda_tensors import cuda  # First: it loads the driver.

import torch
import torch.distributed as dist

import torch_rank
from torch_rank import raises, same


def case_cuda_tensors_take_the_compiled_form(rank, size):
    for asynchronous in (False, True):
        raises("CUDA tensors take the compiled form", dist.all_reduce, cuda(torch.ones(3)), async_op=asynchronous)
    raises("CUDA tensors take the compiled form", dist.send, cuda(torch.ones(3)), (rank + 1) % size)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(size)))


if __name__ == "__main__":
    torch_rank.run(globals())
