"""One rank of the tests of CUDA tensors in the back end for PyTorch, on the stand-in for CUDA's driver or a GPU (torch_cuda_tensors.py): torch_cuda_ranks.py
FOLDER RANK SIZE FORM."""

import datetime
import sys

from torch_cuda_tensors import cuda, gpu, held, stream  # First: it loads the driver.

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions

import torch_rank
from torch_rank import TYPES, raises, same, values, wide


def backend():
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))


def total(size, dtype=torch.float32, count=5):
    result = sum(wide(values(dtype, other, count)) for other in range(size))
    return (result != 0) if dtype == torch.bool else result.to(dtype)


def uneven_all_gather(outputs, own, async_op):
    options = AllgatherOptions()
    options.asyncOp = async_op
    return backend().allgather([outputs], [own], options)


def coalesced(tensors, async_op):
    with dist._coalescing_manager(async_ops=async_op) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    return manager if async_op else None


def calls(rank, size):
    """(name, function of async_op that makes the call, its outputs, what they will be), with tensors that are filled in the current stream."""
    def own(other=rank, count=5):
        return cuda(values(torch.float32, other, count))

    def room(*sizes):
        return cuda(torch.zeros(*sizes))

    parts = [values(torch.float32, other) for other in range(size)]
    root = size - 1
    tensor = own()
    yield "all_reduce", lambda a: dist.all_reduce(tensor, async_op=a), [tensor], [total(size)]
    grid = cuda(torch.full((4, 6), float(rank + 1)))
    expected = torch.full((4, 6), float(rank + 1))
    expected[:, ::2] = size * (size + 1) / 2
    yield "all_reduce of a strided tensor", lambda a: dist.all_reduce(grid[:, ::2], async_op=a), [grid], [expected]
    empty = room(0)
    yield "all_reduce of nothing", lambda a: dist.all_reduce(empty, async_op=a), [empty], [torch.zeros(0)]
    several = [own(), own(count=9)]
    yield "coalesced", lambda a: coalesced(several, a), several, [total(size), total(size, count=9)]
    sent = own()
    yield "broadcast", lambda a: dist.broadcast(sent, root, async_op=a), [sent], [parts[root]]
    summed = own()
    yield "reduce", lambda a: dist.reduce(summed, root, async_op=a), [summed], [total(size) if rank == root else parts[rank]]
    outputs, given = [room(5) for _ in range(size)], own()
    yield "all_gather", lambda a: dist.all_gather(outputs, given, async_op=a), outputs, parts
    flat = room(5 * size)
    yield "all_gather_into_tensor", lambda a: dist.all_gather_into_tensor(flat, given, async_op=a), [flat], [torch.cat(parts)]
    consecutive = list(room(5 * size).split(5))
    yield "all_gather into parts of a buffer", lambda a: dist.all_gather(consecutive, given, async_op=a), consecutive, parts
    lists = [room(other + 1) for other in range(size)]
    uneven = cuda(torch.full((rank + 1,), float(rank)))
    yield "all_gather of different sizes", lambda a: uneven_all_gather(lists, uneven, a), lists, [
        torch.full((other + 1,), float(other)) for other in range(size)]
    gathered = [room(5) for _ in range(size)] if rank == root else []
    yield "gather", lambda a: dist.gather(given, gathered or None, root, async_op=a), gathered, parts if rank == root else []
    scattered, pieces = room(5), [own(other) for other in range(size)] if rank == root else None
    yield "scatter", lambda a: dist.scatter(scattered, pieces, root, async_op=a), [scattered], [parts[rank]]
    terms, term = [cuda(values(torch.float32, rank) * (other + 1)) for other in range(size)], room(5)
    yield "reduce_scatter", lambda a: dist.reduce_scatter(term, terms, async_op=a), [term], [total(size) * (rank + 1)]
    whole = cuda(torch.cat([values(torch.float32, rank) * (other + 1) for other in range(size)]))
    share = room(5)
    yield "reduce_scatter_tensor", lambda a: dist.reduce_scatter_tensor(share, whole, async_op=a), [share], [total(size) * (rank + 1)]
    to, source = [own(rank + other, 3) for other in range(size)], [room(3) for _ in range(size)]
    exchanged = [values(torch.float32, rank + other, 3) for other in range(size)]
    yield "all_to_all", lambda a: dist.all_to_all(source, to, async_op=a), source, exchanged
    rows, received = cuda(torch.full(((rank + 1) * size, 2), float(rank))), room(size * (size + 1) // 2, 2)
    yield "all_to_all_single", lambda a: dist.all_to_all_single(
        received, rows, [other + 1 for other in range(size)], [rank + 1] * size, async_op=a), [received], [
            torch.cat([torch.full((other + 1, 2), float(other)) for other in range(size)])]
    after, before, got = (rank + 1) % size, (rank - 1) % size, room(5)
    yield "messages", lambda a: dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, given, after)]), [got], [
        parts[before]]


def case_a_call_of_every_type(rank, size):
    for dtype in TYPES:
        tensor, gathered = cuda(values(dtype, rank)), cuda(torch.zeros(5 * size, dtype=dtype))
        dist.all_reduce(tensor)
        dist.all_gather_into_tensor(gathered, cuda(values(dtype, rank)))
        same(tensor.cpu(), total(size, dtype))
        same(gathered.cpu(), torch.cat([values(dtype, other) for other in range(size)]))
    scaled = cuda(values(torch.float64, rank))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0))
    same(scaled.cpu(), 2 * total(size, torch.float64))


def case_no_call_blocks_the_host(rank, size):
    """The GPU does nothing until all is enqueued: the inputs, the call, the wait for it, and what uses its results."""
    if gpu.is_real:
        for _, call, _, _ in calls(rank, size):  # What comes for the first time loads kernels and pins memory.
            call(False)
    for asynchronous, handle in ((False, 0), (True, 0), (False, None), (True, None)):
        with stream(handle):
            made, names = calls(rank, size), 0
            while True:
                with held():
                    name, call, outputs, expected = next(made, [None] * 4)
                    if name is None:
                        break
                    works = call(asynchronous)
                    for work in works if isinstance(works, list) else [works] if works else []:
                        work.wait()
                        assert name == "coalesced" or not work.is_completed(), name
                    seen = [output.clone() for output in outputs]
                for found, wanted in zip(seen, expected, strict=True):
                    same(found.cpu(), wanted)
                assert not gpu.violations(), (name, gpu.violations())
                names += 1
            assert names == 17, names


def case_the_current_stream_goes_on(rank, size):
    """It does not wait for an asynchronous call, only for its work."""
    store = dist.distributed_c10d._get_default_store()
    tensor = cuda(values(torch.float32, rank))
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        same(cuda(torch.arange(3.0)).cpu(), torch.arange(3.0))
        error = raises("not done after a timeout of 100 ms", work.wait, datetime.timedelta(milliseconds=100))
        assert isinstance(error, dist.DistBackendError)
        assert not work.is_completed() and work.is_success()
        store.set("rank 0 went on", "")
    else:
        store.wait(["rank 0 went on"])
        work = dist.all_reduce(tensor, async_op=True)
    work.wait(datetime.timedelta(seconds=60))
    assert work.is_completed() and work.is_success() and (torch_rank.IS_OLD or work.exception() is None)
    same(work.result()[0].cpu(), total(size))


def case_futures_wait_in_streams(rank, size):
    tensor = cuda(values(torch.float32, rank))
    with held():
        future = dist.all_reduce(tensor, async_op=True).get_future()
        assert future.done()
        copied = future.then(lambda done: done.value()[0].clone())
        seen = copied.wait().clone()
    same(seen.cpu(), total(size))
    import torch.distributed._functional_collectives as functional
    same(functional.all_reduce(cuda(values(torch.float32, rank)), "sum", dist.group.WORLD).wait().cpu(), total(size))
    assert not gpu.violations(), gpu.violations()


def case_memory_is_given_out_again_in_time(rank, size):
    """The program forgets tensors whose calls wait in streams. Memory of calls in the current stream may serve again at once, that of others not."""
    for asynchronous in (True, False):
        gpu.synchronize(0)
        cuda(torch.zeros(1000)).cpu()
        with held():
            for _ in range(3):
                tensor, strided = cuda(torch.ones(1000)), cuda(torch.ones(7, 11))
                before = gpu.reused()
                dist.all_reduce(tensor, async_op=asynchronous)
                dist.all_reduce(strided.t(), async_op=asynchronous)
                del tensor, strided
                again = cuda(torch.full((1000,), 5.0))
                assert gpu.is_real or (gpu.reused() > before) != asynchronous
                turned = cuda(torch.full((7, 11), 6.0))
        same(again.cpu(), torch.full((1000,), 5.0))
        same(turned.cpu(), torch.full((7, 11), 6.0))
        assert not gpu.violations(), gpu.violations()


def case_messages_do_not_wait_for_each_other(rank, size):
    others = [other for other in range(size) if other != rank]
    got = {other: cuda(torch.zeros(1000)) for other in others}
    works = [dist.irecv(got[other], other) for other in others]
    works += [dist.isend(cuda(torch.full((1000,), float(rank))), other) for other in reversed(others)]
    for work in reversed(works):
        work.wait()
    for other in others:
        same(got[other].cpu(), torch.full((1000,), float(other)))
    if rank == 0:
        tensor = cuda(torch.zeros(1))
        senders = []
        for _ in others:
            senders.append(dist.recv(tensor))  # From any.
            same(tensor.cpu(), torch.tensor([float(senders[-1])]))
        assert sorted(senders) == others
    else:
        dist.send(cuda(torch.tensor([float(rank)])), 0)


def case_many_calls_are_under_way(rank, size):
    tensors = [cuda(torch.full((100,), float(rank + index))) for index in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    host = torch.ones(3)
    dist.all_reduce(host)  # Takes its turn behind them.
    same(host, torch.full((3,), float(size)))
    for index, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        same(tensor.cpu(), torch.full((100,), float(sum(other + index for other in range(size)))))


def case_barriers(rank, size):
    tensor = cuda(values(torch.float32, rank))
    with held():
        dist.all_reduce(tensor)
        work = dist.barrier(device_ids=[0], async_op=True)
        assert not work.is_completed()
    work.wait()
    assert work.is_completed()
    assert gpu.pending() == 0  # It has waited for all of the stream.
    dist.barrier(device_ids=[gpu.devices() - 1])
    dist.barrier()


def case_a_second_device(rank, size):
    if gpu.devices() < 2:
        print("not run: there is one device", flush=True)
        return
    tensor = cuda(values(torch.float32, rank), device=1)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    work.wait()
    same(tensor.cpu(), total(size))


def case_refused(rank, size):
    here, host = cuda(torch.ones(3)), torch.ones(3)
    raises("must be on one device; these are on cuda:0 and cpu", dist.all_gather, [host] * size, here)
    if gpu.devices() > 1:
        there = cuda(torch.ones(3), device=1)
        raises("must be on one device; these are on cuda:0 and cuda:1", backend().allreduce_coalesced, [here, there], AllreduceCoalescedOptions())
    # The stand-in has no sparse tensors; those on another device are refused in the same place.
    sparse = torch.empty(4, layout=torch.sparse_coo, device="meta")
    raises("sparse tensors is there on the CPU; this one is on meta", backend().allreduce, [sparse], dist.AllreduceOptions())
    raises("on the CPU and on CUDA devices; this one is on meta", backend().allreduce, [torch.empty(4, device="meta")], dist.AllreduceOptions())
    raises("dense", backend().broadcast, [sparse], dist.BroadcastOptions())
    dist.all_reduce(here)
    same(here.cpu(), torch.full((3,), float(size)))


def case_an_aborted_group_says_so(rank, size):
    group = dist.new_group(list(range(size)), backend="cuda:annulus")
    tensor = cuda(torch.ones(3))
    dist.all_reduce(tensor, group=group)
    tensor.cpu()  # All ranks have made the call, which an abort would refuse.
    if rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        group._get_backend(torch.device("cuda")).abort()
        error = raises("abort of the process group", work.wait, datetime.timedelta(seconds=60))
        assert isinstance(error, dist.DistBackendError) and work.is_completed() and not work.is_success()
        raises("abort of the process group", work.get_future().wait)
    for asynchronous in (False, True) if rank == 0 else ():
        raises("abort of the process group", dist.all_reduce, tensor, group=group, async_op=asynchronous)
    tensor.cpu()  # The streams go on.
    dist.destroy_process_group(group)
    dist.barrier()


def case_zz_only_the_program_has_called_the_driver(rank, size):
    """The communicator's thread, which opens the gates of streams, must not: the driver may block it."""
    assert gpu.threads() == 1, gpu.threads()
    assert not gpu.violations(), gpu.violations()


if __name__ == "__main__":
    torch_rank.run(globals(), "annulus" if sys.argv[3] == "2" else "cpu:annulus,cuda:annulus")
