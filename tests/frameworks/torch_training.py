"""One rank of the tests of the back end for PyTorch: torch_training.py FOLDER RANK SIZE FORM, for what trains models (torch_rank.py)."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import torch_rank
from torch_rank import same


def case_ddp(rank, size):
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        torch.manual_seed(rank)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1)), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
        for parameter in model.parameters():
            both = [torch.zeros_like(parameter) for _ in range(size)]
            dist.all_gather(both, parameter.detach())
            for each in both:
                same(each, both[0])


def case_ddp_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    for make in (lambda: (None, default_hooks.bf16_compress_hook), lambda: (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)):
        torch.manual_seed(1)
        model = nn.parallel.DistributedDataParallel(nn.Linear(40, 40))
        model.register_comm_hook(*make())
        for _ in range(4):
            model(torch.randn(4, 40)).sum().backward()
        both = [torch.zeros(40, 40) for _ in range(size)]
        dist.all_gather(both, model.module.weight.grad)
        for each in both:
            same(each, both[0])


def case_fsdp1_and_zero(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer
    torch.manual_seed(5)
    plain = nn.Linear(6, 6)
    sharded = FullyShardedDataParallel(nn.Linear(6, 6), device_id=torch.device("cpu"))
    sharded(torch.ones(2, 6)).sum().backward()
    model = nn.parallel.DistributedDataParallel(plain)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 6) * (rank + 1)).sum().backward()
        optimizer.step()
    both = [torch.zeros(6, 6) for _ in range(size)]
    dist.all_gather(both, plain.weight.detach())
    for each in both:
        same(each, both[0])


def case_checkpoints(rank, size):
    import torch.distributed.checkpoint as checkpoint
    folder = os.path.join(sys.argv[1], "checkpoint")
    weights = torch.arange(6.0)
    checkpoint.save({"weights": weights}, checkpoint_id=folder)
    loaded = {"weights": torch.zeros(6)}
    checkpoint.load(loaded, checkpoint_id=folder)
    same(loaded["weights"], weights)


def case_fsdp2_and_dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(4.0 * size).reshape(2 * size, 2)
    spread = distribute_tensor(whole, mesh, [Shard(0)])
    same(spread.redistribute(mesh, [Replicate()]).to_local(), whole)
    torch.manual_seed(3)
    plain, sharded = nn.Linear(8, 8), nn.Linear(8, 8)
    sharded.load_state_dict(plain.state_dict())
    fully_shard(sharded, mesh=mesh)
    data = torch.randn(4, 8)
    for model in (plain, sharded):
        model(data).square().sum().backward()
    torch.testing.assert_close(sharded.weight.grad.full_tensor(), plain.weight.grad)


def held():
    """(bytes of memory, threads, descriptors) of this process."""
    with open("/proc/self/status", encoding="utf-8") as status:
        fields = dict(line.split(":", 1) for line in status)
    return 1024 * int(fields["VmRSS"].split()[0]), int(fields["Threads"]), len(os.listdir("/proc/self/fd"))


def case_a_thousand_steps_leave_nothing(rank, size):
    """Of DDP in several buckets, each step with an asynchronous call of its own. What comes up only with the first steps is not counted."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(100, 100) for _ in range(4))), bucket_cap_mb=0.05)
    losses = torch.zeros(1)
    before = None
    for step in range(1300):
        loss = model(torch.ones(4, 100)).square().mean()
        loss.backward()
        model.zero_grad()
        losses.fill_(loss.detach())
        dist.all_reduce(losses, async_op=True).wait()
        if step == 299:
            before = held()
    after = held()
    # A kilobyte that is lost with each call would be 5 MB. Pools may still get a thread or two, each with some memory of its own.
    assert after[0] <= before[0] + 3_000_000 and after[1] <= before[1] + 2 and after[2] <= before[2], (before, after)


def case_sparse_gradients(rank, size):
    """DDP sums the sparse gradients of embeddings: as dense ones, but for the zeros."""
    torch.manual_seed(7)
    weights = torch.randn(10, 4)
    gradients = []
    for is_sparse in (False, True):
        model = nn.parallel.DistributedDataParallel(nn.Embedding(10, 4, sparse=is_sparse, _weight=weights.clone()))
        model(torch.tensor([rank, 5, 5])).square().sum().backward()
        assert model.module.weight.grad.is_sparse == is_sparse
        gradients.append(model.module.weight.grad.to_dense())
    torch.testing.assert_close(*gradients)


def case_compiled(rank, size):
    """torch.compile: a model in DDP, and a function with a collective in its graph."""
    import torch.distributed._functional_collectives as functional
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(11)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
        torch.manual_seed(rank)
        (torch.compile(model, backend="aot_eager") if compiled else model)(torch.randn(4, 8)).square().sum().backward()
        gradients.append(model.module[0].weight.grad)
    torch.testing.assert_close(*gradients)

    @torch.compile(fullgraph=True)
    def total(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    same(total(torch.full((3,), float(rank))), torch.full((3,), 1.0 + size * (size - 1)))


if __name__ == "__main__":
    torch_rank.run(globals())
