"""One rank of the tests of the back end for PyTorch: torch_refused.py FOLDER RANK SIZE FORM, for calls that are refused, and the barrier that names who is
missing (torch_rank.py)."""

import datetime
import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, GatherOptions, ReduceScatterOptions, ScatterOptions

import torch_rank
from torch_rank import raises, same


def cpu_backend():
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def usable(size):
    """A call that is refused has left the group as it was."""
    total = torch.ones(2)
    dist.all_reduce(total)
    same(total, torch.full((2,), float(size)))


def case_refused_calls_leave_the_group_usable(rank, size):
    raises("all_gather", dist.all_gather_into_tensor, torch.zeros(3), torch.zeros(5))
    raises("dense", cpu_backend().broadcast, [torch.eye(2).to_sparse()], dist.BroadcastOptions())
    usable(size)


def guarded(count, size, dtype):
    """(memory, a list of `size` tensors of `count` elements that are the parts of its first half)."""
    memory = torch.full((2 * size * count,), 7, dtype=dtype)
    return memory, list(memory[:size * count].split(count))


def case_lists_of_another_type_are_refused(rank, size):
    """Where the list's own elements are smaller than those of the calls, the calls would write or read beyond it."""
    backend, wide, narrow = cpu_backend(), (torch.complex64, torch.float64, torch.int16), (torch.float32, torch.float32, torch.bool)
    for large, small in list(zip(wide, narrow)) + [(torch.int32, torch.float32)]:
        own = torch.ones(4, dtype=large)
        memory, parts = guarded(4, size, small)
        mixed = [torch.ones(4, dtype=large if other == rank else small) for other in range(size)]
        for given in (parts, mixed):
            options = GatherOptions()
            options.rootRank = rank
            raises("gather from ", backend.gather, [given], [own], options)
            raises("all_gather from ", backend.allgather, [given], [own], AllgatherOptions())
            raises("all_gather from ", backend.allgather_coalesced, [[tensor] for tensor in given], [own], AllgatherOptions())
            options = ScatterOptions()
            options.rootRank = rank
            raises("scatter from ", backend.scatter, [own], [given], options)
            raises("reduce_scatter from ", backend.reduce_scatter, [own], [given], ReduceScatterOptions())
            same_type = [own.clone() for _ in range(size)]
            raises("all_to_all from ", backend.alltoall, given, same_type, AllToAllOptions())
            raises("all_to_all from ", backend.alltoall, same_type, given, AllToAllOptions())
        same(memory, torch.full((8 * size,), 7, dtype=small))
        same(own, torch.ones(4, dtype=large))
    error = raises("reduce_scatter from ", dist.reduce_scatter, torch.ones(4, dtype=torch.complex64), guarded(4, size, torch.float32)[1])
    names = ("Float", "ComplexFloat") if torch_rank.is_compiled() else ("torch.float32", "torch.complex64")
    assert all(name in str(error) for name in names), error
    usable(size)


def case_monitored_barrier(rank, size):
    if torch_rank.IS_OLD:
        print("not run: this PyTorch has monitored_barrier for gloo alone", flush=True)
        return
    dist.monitored_barrier()
    if rank != 1:
        text = "Rank 1 failed to pass monitoredBarrier in 300 ms" if rank == 0 else f"Rank {rank} successfully reached monitoredBarrier"
        raises(text, dist.monitored_barrier, timeout=datetime.timedelta(milliseconds=300))
    dist.barrier()
    dist.monitored_barrier()
    if rank == 0:
        raises("Rank 0 timed out in monitoredBarrier", dist.monitored_barrier, timeout=datetime.timedelta(0))
        raises("Ranks 1 failed" if size == 2 else "Ranks 1, 2", dist.monitored_barrier, timeout=datetime.timedelta(milliseconds=100),
               wait_all_ranks=True)
    dist.all_reduce(torch.ones(1))


def case_a_monitored_barrier_leaves_no_keys(rank, size):
    if torch_rank.IS_OLD:
        return
    store = dist.distributed_c10d._get_default_store()

    def keys():
        dist.barrier()
        count = store.num_keys()
        dist.barrier()
        return count

    dist.monitored_barrier()
    before = keys()
    for _ in range(3):
        dist.monitored_barrier()
    assert keys() == before, (keys(), before)
    if rank == 1:  # Rank 0 is not there.
        raises("Rank 1 successfully reached", dist.monitored_barrier, timeout=datetime.timedelta(milliseconds=100))
    dist.barrier()
    dist.monitored_barrier()
    assert keys() == before, (keys(), before)


def case_a_forked_childs_monitored_barrier_is_refused(rank, size):
    if torch_rank.IS_OLD:
        return
    dist.barrier()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            raises("a forked child cannot use", dist.monitored_barrier, timeout=datetime.timedelta(milliseconds=200))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()
    dist.monitored_barrier()
    usable(size)


def case_a_monitored_barrier_passes_no_rank_that_has_given_up(rank, size):
    if torch_rank.IS_OLD or size < 3:
        return
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        raises("failed to pass monitoredBarrier in 6000 ms", dist.monitored_barrier, timeout=datetime.timedelta(seconds=6))
    elif rank == 1:
        raises("Rank 1 successfully reached", dist.monitored_barrier, timeout=datetime.timedelta(seconds=1))
        store.set("torch_refused/given_up", "1")
    else:
        store.wait(["torch_refused/given_up"])
        raises(f"Rank {rank} successfully reached", dist.monitored_barrier, timeout=datetime.timedelta(seconds=1))
    dist.barrier()
    dist.monitored_barrier()


if __name__ == "__main__":
    torch_rank.run(globals())
