"""Calls in a stream that is captured into a CUDA graph, on the stand-in for CUDA's driver: graphs.py DRIVER. Run on any number of ranks by
annulus-run."""

import sys

import numpy as np

import pyannulus
from foreign_arrays import Gpu, OnGpu

gpu = Gpu(sys.argv[1])
comm = pyannulus.Communicator(timeout_ms=60000)
RANK, SIZE = comm.rank, comm.size
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
LAUNCHES = 100
stream = gpu.new_stream()
calls = comm.with_options(stream=stream.value, label="captured")


def refuses(kind, words, function, *args, **settings):
    try:
        function(*args, **settings)
    except kind as error:
        assert words in str(error), (words, str(error))
        return
    raise AssertionError(f"expected {kind.__name__}: {words}")


class Array(OnGpu):
    """Memory of the GPU that can be filled and read, in the stream."""

    def __init__(self, count):
        self.like = np.zeros(count, np.float32)
        self.address = gpu.new(self.like)
        super().__init__(self.address, (count,), "<f4")

    def fill(self, content):
        self.like[:] = content
        gpu.fill_pinned(self.like)
        gpu.copy_later(self.address, gpu.pinned.value, self.like.nbytes, stream)
        gpu.call("cuStreamSynchronize", stream)  # The pinned memory serves again.

    def read(self):
        gpu.call("cuStreamSynchronize", stream)
        return gpu.read(self.address, self.like)


def given(rank, step, count=6):
    return np.arange(count, dtype=np.float32) + 10 * (rank + 1) + step


def total(step, count=6):
    return sum(given(rank, step, count) for rank in range(SIZE))


def check(graph, inputs, outputs, launches=LAUNCHES, beside=lambda step: None):
    """inputs, outputs: [(array, what it has in a step)]."""
    for step in range(launches):
        for array, content in inputs:
            array.fill(content(step))
        graph.launch(stream)
        beside(step)
        for array, content in outputs:
            found = array.read()
            assert (found == content(step)).all(), (step, found, content(step))
    assert gpu.violations() == 0, gpu.violations()


def mine(step):
    return given(RANK, step)


def every_call():
    """One graph with all of them; those without a request as they return, the others with a request that has ended."""
    one, out, own, reduced, at_root, all_of, into, last = (Array(count) for count in (6, 6, 6, 6, 6, 6 * SIZE, 6, 6))
    wide, share, turned = Array(2 * SIZE), Array(2), Array(2 * SIZE)
    group = [Array(6), Array(50)]
    double = comm.premul_sum(2.0)
    function = comm.reduction(lambda left, right, to: np.add(left, right, out=to))
    scaled, by_function = Array(6), Array(6)
    with gpu.captured(stream) as graph:
        assert calls.allreduce(one, out=out) is out
        request = calls.allreduce_async(one, "max", out=last)
        assert request.test() and request.wait() is last and request.wait(timeout=0) is last
        assert calls.broadcast(own, SIZE - 1) is own
        calls.reduce(one, 0, out=reduced)
        calls.gather(one, 0, out=all_of if RANK == 0 else None)
        calls.scatter(all_of if RANK == 0 else None, 0, out=at_root)
        calls.allgather(one, out=all_of)
        calls.reduce_scatter(wide, out=share)
        calls.alltoall(wide, out=turned)
        if SIZE > 1:
            assert calls.sendrecv(one, NEXT, into, PREVIOUS) is into
        calls.allreduce_group(group, in_place=True)
        with calls.group() as together:
            first = together.allreduce_async(one, double, out=scaled)
            second = together.allreduce_async(one, "sum", out=last)
        assert first.test() and second.wait() is last
        calls.allreduce(one, function, out=by_function)
        calls.barrier()
    double.destroy()
    function.destroy()  # The graph keeps them.
    rows = np.concatenate([given(rank, 0) for rank in range(SIZE)])
    outputs = [(out, total), (last, total), (own, lambda step: given(SIZE - 1, step)), (at_root, mine), (all_of, lambda step: rows + step),
               (share, lambda step: total(step, 2 * SIZE)[2 * RANK:2 * RANK + 2]),
               (turned, lambda step: np.concatenate([given(rank, step, 2 * SIZE)[2 * RANK:2 * RANK + 2] for rank in range(SIZE)])),
               (group[0], total), (group[1], lambda step: total(step, 50)), (scaled, lambda step: 2 * total(step)), (by_function, total)]
    if RANK == 0:
        outputs.append((reduced, total))
    if SIZE > 1:
        outputs.append((into, lambda step: given(PREVIOUS, step)))
    check(graph, [(one, mine), (own, mine), (wide, lambda step: given(RANK, step, 2 * SIZE)), (group[0], mine),
                  (group[1], lambda step: given(RANK, step, 50))], outputs)
    graph.destroy()


def host_memory_and_live_calls():
    """Numpy arrays are read and written by each launch; calls go on in between, in the stream and without one."""
    host, result, array, other = np.zeros(6, np.float32), np.zeros(6, np.float32), Array(6), Array(6)
    with gpu.captured(stream) as graph:
        calls.allreduce(host, out=result)
        calls.allreduce(array, out=array)

    def beside(step):
        other.fill(given(RANK, step + 1))
        request = calls.allreduce_async(other, out=other)
        gpu.call("cuStreamSynchronize", stream)
        assert request.wait() is other and (result == total(step)).all()
        assert (comm.allreduce(np.full(3, RANK + 1.0)) == SIZE * (SIZE + 1) / 2).all()
        host[:] = mine(step + 1)

    host[:] = mine(0)
    check(graph, [(array, mine)], [(array, total), (other, lambda step: total(step + 1))], 20, beside)
    graph.destroy()


def refused():
    """With the reason; the capture and the communicator go on."""
    array, other_stream = Array(6), gpu.new_stream()
    elsewhere = Array(6)
    elsewhere.__cuda_array_interface__["stream"] = stream.value
    received = pyannulus.Received()
    with gpu.captured(stream) as graph:
        refuses(pyannulus.InvalidArgument, "done is set, but stream is captured into a graph",
                comm.with_options(stream=stream.value, done=print).allreduce, array, out=array)
        if SIZE > 1:  # One alone receives from nobody, and agrees with itself.
            refuses(pyannulus.InvalidArgument, "received is set, but stream is captured into a graph", calls.recv, array, NEXT, received=received)
            refuses(pyannulus.Error, "captured into a graph, where ranks cannot agree first",
                    comm.with_options(stream=stream.value, agree_first=True).allreduce, array, out=array)
        refuses(RuntimeError, "its stream is captured into a CUDA graph", comm.with_options(stream=other_stream.value).allreduce, elsewhere, out=array)
        refuses(RuntimeError, "its stream is captured into a CUDA graph", comm.allreduce, elsewhere, out=np.zeros(6, np.float32))
        calls.allreduce(array, out=array)
    check(graph, [(array, mine)], [(array, total)], 10)
    graph.destroy()
    if SIZE > 1:
        refuses(pyannulus.Error, "a receive from any rank cannot be in a stream", calls.recv, array)  # A live one: it could not give way to a launch.
    array.fill(mine(2))
    assert calls.allreduce_async(array, out=array).wait() is array
    assert (array.read() == total(2)).all() and comm.verdict() is None


def abort_ends_launches():
    array = Array(6)
    other = comm.dup()
    with gpu.captured(stream) as graph:
        other.with_options(stream=stream.value).allreduce(array, out=array)
    check(graph, [(array, mine)], [(array, total)], 3)
    comm.barrier()
    if RANK == 0:
        other.abort("enough of it")
    graph.launch(stream)
    array.read()
    verdict = other.verdict()
    assert "enough of it" in str(verdict), verdict
    refuses(pyannulus.Error, "enough of it", other.barrier)
    other.close()
    for _ in range(3):
        graph.launch(stream)
    array.read()
    graph.destroy()


every_call()
host_memory_and_live_calls()
refused()
abort_ends_launches()
comm.close()
assert gpu.violations() == 0
print("passed")
