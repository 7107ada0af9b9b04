"""One rank of the tests of calls that are captured into CUDA graphs, on the stand-in for CUDA's driver or a GPU (torch_cuda_tensors.py):
torch_cuda_graphs.py FOLDER RANK SIZE FORM. Before each replay the same tensors get new values."""

import datetime
import functools
import os
import sys
import time

from torch_cuda_tensors import captured, cuda, gpu, stream  # First: it loads the driver.

import torch
import torch.distributed as dist

import torch_rank
from torch_rank import raises, same

REPLAYS = 100


def backend(group=None):
    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cuda"))


def wait(works):
    for work in works if isinstance(works, list) else [works] if works else []:
        work.wait()


def row(rank, step, count=5):
    """What a rank gives in a step: small whole numbers."""
    return torch.arange(float(count)) + 10 * (rank + 1) + step


class Table:
    """Calls with tensors of their own. Each is (name, function of async_op, inputs, outputs): these are lists of tensors with a function that
    gives their values in a step."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def total(self, step, count=5):
        return sum(row(other, step, count) for other in range(self.size))

    def own(self, step):
        return row(self.rank, step)

    def calls(self):
        rank, size, room = self.rank, self.size, lambda *sizes: cuda(torch.zeros(*sizes))
        ranks, root, after, before = range(size), size - 1, (rank + 1) % size, (rank - 1) % size
        tensor = room(5)
        yield "all_reduce", lambda a: dist.all_reduce(tensor, async_op=a), [(tensor, self.own)], [(tensor, self.total)]
        grid = room(4, 6)  # Every second column, through a buffer of the call's.
        yield ("all_reduce of a strided tensor", lambda a: dist.all_reduce(grid[:, ::2], async_op=a), [(grid, lambda step: row(rank, step, 24).view(4, 6))],
               [(grid, lambda step: torch.stack([(self.total(step, 24) if index % 2 == 0 else row(rank, step, 24)).view(4, 6)[:, index]
                                                 for index in range(6)], 1))])
        share, whole = room(5), room(5 * size)
        yield ("reduce_scatter_tensor", lambda a: dist.reduce_scatter_tensor(share, whole, async_op=a), [(whole, lambda step: row(rank, step, 5 * size))],
               [(share, lambda step: self.total(step, 5 * size)[5 * rank:5 * rank + 5])])
        given, flat = room(5), room(5 * size)
        yield ("all_gather_into_tensor", lambda a: dist.all_gather_into_tensor(flat, given, async_op=a), [(given, self.own)],
               [(flat, lambda step: torch.cat([row(other, step) for other in ranks]))])
        one, outputs = room(5), [room(5) for _ in ranks]  # No parts of one buffer.
        yield ("all_gather", lambda a: dist.all_gather(outputs, one, async_op=a), [(one, self.own)],
               [(output, lambda step, other=other: row(other, step)) for other, output in enumerate(outputs)])
        sent = room(5)
        yield "broadcast", lambda a: dist.broadcast(sent, root, async_op=a), [(sent, self.own)], [(sent, lambda step: row(root, step))]
        summed = room(5)
        yield ("reduce", lambda a: dist.reduce(summed, root, async_op=a), [(summed, self.own)],
               [(summed, self.total if rank == root else self.own)])
        rows, received = room(rank + 1, size, 2), room(size * (size + 1) // 2, 2)
        yield ("all_to_all_single", lambda a: dist.all_to_all_single(received, rows.view(-1, 2), [other + 1 for other in ranks], [rank + 1] * size, async_op=a),
               [(rows, lambda step: torch.full((rank + 1, size, 2), 10.0 * rank + step))],
               [(received, lambda step: torch.cat([torch.full((other + 1, 2), 10.0 * other + step) for other in ranks]))])
        out, into = room(5), room(5)
        yield ("messages", lambda a: dist.batch_isend_irecv([dist.P2POp(dist.irecv, into, before), dist.P2POp(dist.isend, out, after)]), [(out, self.own)],
               [(into, lambda step: row(before, step))])
        several = [room(5), room(9)]
        yield ("coalesced", lambda a: coalesced(several, a), [(each, lambda step, each=each: row(rank, step, each.numel())) for each in several],
               [(each, lambda step, each=each: self.total(step, each.numel())) for each in several])


def coalesced(tensors, async_op):
    with dist._coalescing_manager(async_ops=async_op) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    return manager if async_op else None


def check_replays(graph, inputs, outputs, steps, beside=lambda step: None):
    """Replays in the current stream; beside(step) is called after each."""
    for step in steps:
        for tensor, value in inputs:
            tensor.copy_(value(step))
        graph.replay()
        beside(step)
        for tensor, value in outputs:
            same(tensor.cpu(), value(step))


def in_a_stream(case):
    """The case gets a stream of its own, which is the current one, to be captured."""
    @functools.wraps(case)
    def run(rank, size):
        gpu.synchronize(0)
        handle = gpu.new_stream(0)
        with stream(handle):
            case(rank, size, handle)
            gpu.synchronize(0)
    return run


@in_a_stream
def case_every_call_in_a_graph(rank, size, handle):
    for asynchronous in (False, True):
        names = 0
        for name, call, inputs, outputs in Table(rank, size).calls():
            wait(call(asynchronous))  # On a GPU, kernels are loaded now.
            with captured(handle) as graph:
                wait(call(asynchronous))
            check_replays(graph, inputs, outputs, range(REPLAYS if asynchronous else 20))
            graph.reset()
            assert not gpu.violations(), (name, gpu.violations())
            names += 1
        assert names == 10, names


@in_a_stream
def case_many_calls_in_one_graph(rank, size, handle):
    """Asynchronous ones beside each other, and one that uses what another gave; twice, with the first graph still there."""
    graphs = []
    for _ in range(2):
        table = list(Table(rank, size).calls())
        first, last = cuda(torch.zeros(5)), cuda(torch.zeros(5 * size))
        for _, call, _, _ in table:
            wait(call(True))
        with captured(handle) as graph:
            works = [call(True) for _, call, _, _ in table]
            dist.all_reduce(first)
            dist.all_gather_into_tensor(last, first)
            for work in reversed(works):
                wait(work)
        inputs = [each for _, _, given, _ in table for each in given] + [(first, table[0][2][0][1])]
        outputs = [each for _, _, _, got in table for each in got]
        outputs.append((last, lambda step: Table(rank, size).total(step).repeat(size)))
        graphs.append((graph, inputs, outputs))
    for turn in range(5):
        for graph, inputs, outputs in graphs:
            check_replays(graph, inputs, outputs, range(10 * turn, 10 * turn + 10))
    for graph, _, _ in graphs:
        graph.reset()
    assert not gpu.violations(), gpu.violations()


@in_a_stream
def case_live_calls_between_replays(rank, size, handle):
    table = Table(rank, size)
    tensor, beside, other = (cuda(torch.zeros(5)) for _ in range(3))
    with captured(handle) as graph:
        dist.all_reduce(tensor)

    def live(step):
        beside.copy_(row(rank, step + 1))
        dist.all_reduce(beside)
        other.copy_(row(rank, step + 2))
        work = dist.all_reduce(other, async_op=True)
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, (rank - 1) % size), dist.P2POp(dist.isend, sent, (rank + 1) % size)])
        wait([work, *works])

    got, sent = cuda(torch.zeros(5)), cuda(row(rank, 0))
    outputs = [(tensor, table.total), (beside, lambda step: table.total(step + 1)), (other, lambda step: table.total(step + 2)),
               (got, lambda step: row((rank - 1) % size, 0))]
    check_replays(graph, [(tensor, table.own)], outputs, range(REPLAYS), live)
    for step in range(REPLAYS):  # The host waits for none of these.
        graph.replay()
        live(step)
    gpu.synchronize(0)
    host = torch.ones(3)
    tensor.cpu()
    dist.all_reduce(host)
    same(host, torch.full((3,), float(size)))
    graph.reset()
    assert not gpu.violations(), gpu.violations()


@in_a_stream
def case_operations_stay_with_the_graph(rank, size, handle):
    """Those that are made for one call."""
    table = Table(rank, size)
    scaled, averaged, largest = (cuda(torch.zeros(5)) for _ in range(3))
    with captured(handle) as graph:
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0))
        work = dist.all_reduce(averaged, dist.ReduceOp.AVG, async_op=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        work.wait()
    for factor in range(3, 20):  # Operations come and go meanwhile.
        other = cuda(row(rank, 0))
        dist.all_reduce(other, dist._make_nccl_premul_sum(float(factor)))
        same(other.cpu(), factor * table.total(0))
    check_replays(graph, [(each, table.own) for each in (scaled, averaged, largest)],
                  [(scaled, lambda step: 2 * table.total(step)), (averaged, lambda step: table.total(step) / size),
                   (largest, lambda step: row(size - 1, step))], range(20))
    graph.reset()


@in_a_stream
def case_memory_of_the_graph_is_its_own(rank, size, handle):
    """The graph uses tensors that were made and forgotten in the capture, and buffers of calls."""
    table = Table(rank, size)
    given, result, sevens, seen = (cuda(torch.full((1000,), value)) for value in (0.0, 0.0, 7.0, 0.0))
    with captured(handle) as graph:
        for asynchronous in (True, False):
            made = given.clone()
            wait(dist.all_reduce(made, async_op=asynchronous))
            result.copy_(made)
            del made
        work = dist.all_reduce(given.view(25, 40).t(), async_op=True)
        again = sevens.clone()  # Not in the buffer of the call, which still uses it.
        seen.copy_(again)
        work.wait()
    kept = [cuda(torch.full((1000,), float(index))) for index in range(20)]
    check_replays(graph, [(given, lambda step: row(rank, step, 1000))],
                  [(result, lambda step: table.total(step, 1000)), (given, lambda step: table.total(step, 1000)),
                   (seen, lambda step: torch.full((1000,), 7.0))], range(10))
    for index, tensor in enumerate(kept):
        same(tensor.cpu(), torch.full((1000,), float(index)))
    graph.reset()
    assert not gpu.violations(), gpu.violations()


@in_a_stream
def case_futures_in_a_capture(rank, size, handle):
    import torch.distributed._functional_collectives as functional
    table = Table(rank, size)
    given, copied, summed = (cuda(torch.zeros(5)) for _ in range(3))
    with captured(handle) as graph:
        future = dist.all_reduce(given, async_op=True).get_future()
        assert future.done()
        copied.copy_(future.then(lambda done: done.value()[0].clone()).wait())
        summed.copy_(functional.all_reduce(copied, "sum", dist.group.WORLD).wait())
    check_replays(graph, [(given, table.own)], [(copied, table.total), (summed, lambda step: size * table.total(step))], range(10))
    graph.reset()
    assert not gpu.violations(), gpu.violations()


@in_a_stream
def case_works_of_a_capture(rank, size, handle):
    """They are done for the host at once, also where wait blocks it; they are waited for in the capture, and others are not."""
    os.environ["TORCH_ANNULUS_BLOCKING_WAIT"] = "1"
    blocking = dist.new_group(list(range(size)), backend="cuda:annulus")
    del os.environ["TORCH_ANNULUS_BLOCKING_WAIT"]
    table = Table(rank, size)
    tensors = [cuda(torch.zeros(5)) for _ in range(3)]
    live = cuda(row(rank, 0))
    before = dist.all_reduce(live, async_op=True)
    with captured(handle) as graph:
        raises("all_reduce was not captured: wait for it before", before.wait)
        works = [dist.all_reduce(tensors[0], async_op=True), dist.all_reduce(tensors[1], async_op=True),
                 dist.all_reduce(tensors[2], group=blocking, async_op=True)]
        for work in works:
            assert work.is_completed() and work.is_success() and (torch_rank.IS_OLD or work.exception() is None)
            assert work.wait(datetime.timedelta(seconds=1)) if work is works[0] else work.wait()
        assert work.result()[0] is not None
    raises("all_reduce was captured into a CUDA graph: wait for it in the capture", works[1].wait)
    assert works[1].is_completed()
    before.wait()
    same(live.cpu(), table.total(0))
    check_replays(graph, [(each, table.own) for each in tensors], [(each, table.total) for each in tensors], range(10))
    graph.reset()
    dist.destroy_process_group(blocking)
    assert not gpu.violations(), gpu.violations()


@in_a_stream
def case_refused_in_a_capture(rank, size, handle):
    """What the host waits for, and what the library refuses. The capture goes on, and so does the group."""
    table = Table(rank, size)
    tensor, other, factor = cuda(torch.zeros(5)), cuda(torch.zeros(5)), cuda(torch.full((1,), 2.0))
    aborted = dist.new_group(list(range(size)), backend="cuda:annulus")
    backend(aborted).abort()
    host_waits = "cannot be captured into a CUDA graph: the host waits for it"
    with captured(handle) as graph:
        dist.all_reduce(tensor)
        for asynchronous in (False, True):
            raises(f"barrier {host_waits}", dist.barrier, async_op=asynchronous)
            raises(f"barrier {host_waits}", dist.barrier, device_ids=[0], async_op=asynchronous)
            raises("abort of the process group", dist.all_reduce, other, group=aborted, async_op=asynchronous)
        raises(f"recvAnySource {host_waits}", dist.recv, other)
        raises(f"monitored_barrier {host_waits}", backend().monitored_barrier, datetime.timedelta(seconds=5), False)
        raises("the factor of PREMUL_SUM is a CUDA tensor", dist.all_reduce, other, dist._make_nccl_premul_sum(factor))
        wait(dist.all_reduce(other, async_op=True))
    check_replays(graph, [(tensor, table.own), (other, table.own)], [(tensor, table.total), (other, table.total)], range(10))
    raises("a receive from any rank cannot be in a stream", dist.recv, other)  # A live one, which could not give way to launches.
    other.copy_(row(rank, 3))
    dist.all_reduce(other)
    same(other.cpu(), table.total(3))
    dist.barrier(device_ids=[0])
    graph.reset()
    dist.destroy_process_group(aborted)
    assert not gpu.violations(), gpu.violations()


@in_a_stream
def case_replays_of_a_group_that_is_gone(rank, size, handle):
    """They end, whether the group was aborted or destroyed; a call tells of the abort."""
    for ends_by in ("abort", "destroy"):
        group = dist.new_group(list(range(size)), backend="cuda:annulus")
        tensor = cuda(torch.zeros(5))
        with captured(handle) as graph:
            wait(dist.all_reduce(tensor, group=group, async_op=True))
        check_replays(graph, [(tensor, Table(rank, size).own)], [(tensor, Table(rank, size).total)], range(3))
        dist.barrier()  # All ranks' launches have ended.
        if ends_by == "abort":
            if rank == 0:
                backend(group).abort()
            graph.replay()  # Waits for rank 0, whose abort ends it, or passes.
            tensor.cpu()
            raises("abort of the process group", dist.all_reduce, tensor, group=group)
            assert backend(group).get_error().name != "SUCCESS"
        dist.destroy_process_group(group)
        for _ in range(3):
            graph.replay()
        tensor.cpu()
        graph.reset()
    dist.barrier()


def case_zz_nothing_is_left(rank, size):
    gpu.synchronize(0)
    assert gpu.threads() == 1, gpu.threads()
    assert not gpu.violations(), gpu.violations()
    deadline = time.monotonic() + 60
    while gpu.user_objects() and time.monotonic() < deadline:  # They go when a thread of the driver's comes to it.
        time.sleep(0.01)
    assert gpu.user_objects() == 0, gpu.user_objects()


if __name__ == "__main__":
    torch_rank.run(globals(), "annulus" if sys.argv[3] == "2" else "cpu:annulus,cuda:annulus")
