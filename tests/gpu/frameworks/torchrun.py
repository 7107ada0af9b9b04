"""A program for torchrun: ranks that share a GPU sum a tensor over the back end for PyTorch. DEVICE=cpu tries it without a GPU."""

import os

import annulus_torch
import torch
import torch.distributed as dist

annulus_torch.register()  # PyTorch 2.11 does not look for back ends that are installed.
dist.init_process_group("annulus")
tensor = torch.full((1000,), dist.get_rank() + 1.0, device=os.environ.get("DEVICE", "cuda"))
dist.all_reduce(tensor)
assert (tensor == dist.get_world_size() * (dist.get_world_size() + 1) / 2).all().item()
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} is content\n".encode())
dist.destroy_process_group()
