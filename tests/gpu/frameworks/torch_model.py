"""Trainings on a GPU over the back end for PyTorch, beside the same training in one process: cases for cases.py; those with the prefix compiled_ use
torch.compile. DEVICE=cpu tries it without a GPU."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn

from torch_rank import same

DEVICE = os.environ.get("DEVICE", "cuda")
torch.backends.cuda.matmul.allow_tf32 = False
WIDTH, STEPS, RATE = 256, 4, 0.05


def new_model():
    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1)).to(DEVICE)


def train(model, parameters, rows):
    """`rows`: those of the whole batch that this process has."""
    generator = torch.Generator().manual_seed(7)
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    for _ in range(STEPS):
        data = torch.randn(48, WIDTH, generator=generator)[rows].to(DEVICE)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


def own_rows(rank, size):
    return slice(48 // size * rank, 48 // size * (rank + 1))


def reference():
    model = new_model()
    train(model, model.parameters(), slice(None))
    return [parameter.detach() for parameter in model.parameters()]


def all_ranks_have(tensor, size):
    both = [torch.zeros_like(tensor) for _ in range(size)]
    dist.all_gather(both, tensor)
    for each in both:
        same(each.cpu(), both[0].cpu())


def check(parameters, size, **tolerance):
    for found, wanted in zip(parameters, reference(), strict=True):
        torch.testing.assert_close(found, wanted, **tolerance)
        all_ranks_have(found, size)


def distributed(model, bucket_mb=0.3, **options):
    devices = {"device_ids": [0]} if DEVICE == "cuda" else {}
    return nn.parallel.DistributedDataParallel(model, **devices, bucket_cap_mb=bucket_mb, **options)


def case_ddp(rank, size):
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        model = new_model()
        train(distributed(model, **options), model.parameters(), own_rows(rank, size))
        check([parameter.detach() for parameter in model.parameters()], size, rtol=1e-4, atol=1e-5)


def case_ddp_with_the_bf16_hook(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = new_model()
    wrapped = distributed(model)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    train(wrapped, model.parameters(), own_rows(rank, size))
    check([parameter.detach() for parameter in model.parameters()], size, rtol=2e-2, atol=2e-3)


def case_ddp_in_a_stream_of_the_program(rank, size):
    model = new_model()
    wrapped = distributed(model)
    stream = contextlib.nullcontext()
    if DEVICE == "cuda":
        chosen = torch.cuda.Stream()
        chosen.wait_stream(torch.cuda.current_stream())
        stream = torch.cuda.stream(chosen)
    with stream:
        train(wrapped, model.parameters(), own_rows(rank, size))
        if DEVICE == "cuda":
            chosen.synchronize()
    check([parameter.detach() for parameter in model.parameters()], size, rtol=1e-4, atol=1e-5)


def case_fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh(DEVICE, (size,))
    model = new_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, model.parameters(), own_rows(rank, size))
    check([parameter.detach().full_tensor() for parameter in model.parameters()], size, rtol=1e-4, atol=1e-5)


def case_fsdp1(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = FullyShardedDataParallel(new_model(), device_id=torch.device(DEVICE, 0) if DEVICE == "cuda" else torch.device("cpu"), use_orig_params=True)
    train(model, model.parameters(), own_rows(rank, size))
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        check([parameter.detach().clone() for parameter in model.parameters()], size, rtol=1e-4, atol=1e-5)


def compiled_ddp_eager(rank, size):
    model = new_model()
    train(torch.compile(distributed(model, bucket_mb=1), backend="aot_eager"), model.parameters(), own_rows(rank, size))
    check([parameter.detach() for parameter in model.parameters()], size, rtol=1e-4, atol=1e-5)


def compiled_ddp_inductor(rank, size):
    model = new_model()
    train(torch.compile(distributed(model, bucket_mb=1)), model.parameters(), own_rows(rank, size))
    check([parameter.detach() for parameter in model.parameters()], size, rtol=1e-4, atol=1e-5)


def compiled_call_in_a_graph(rank, size):
    import torch.distributed._functional_collectives as functional

    @torch.compile(fullgraph=True)
    def summed(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    same(summed(torch.full((300,), float(rank), device=DEVICE)).cpu(), torch.full((300,), 1.0 + size * (size - 1)))
