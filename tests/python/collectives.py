"""Every collective and message, on every type, out of place and in place; run on any number of ranks by annulus-run."""

import traceback

import numpy as np

import pyannulus

try:
    import ml_dtypes  # Its types are known by name; nothing needs it.
except ImportError:
    ml_dtypes = None

DTYPES = [np.dtype(name) for name in
          ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")]
if ml_dtypes:
    DTYPES += [np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]
OPS = {
    "sum": lambda all_ranks: all_ranks.sum(axis=0),
    "prod": lambda all_ranks: all_ranks.prod(axis=0),
    "min": lambda all_ranks: all_ranks.min(axis=0),
    "max": lambda all_ranks: all_ranks.max(axis=0),
    "avg": lambda all_ranks: np.trunc(all_ranks.mean(axis=0)),
}

pyannulus.init(timeout_ms=20000, priorities=1)
RANK, SIZE = pyannulus.rank(), pyannulus.size()


def of_rank(rank, dtype, shape):
    """Small whole numbers, whose sums and products all types hold, other ones for each rank."""
    count = int(np.prod(shape, dtype=int))
    return ((np.arange(count) + rank) % 2 + 1).reshape(shape).astype(dtype)


def everyones(dtype, shape):
    return np.stack([of_rank(rank, np.float64, shape) for rank in range(SIZE)])


def same(result, expected, dtype):
    assert result.dtype == dtype, (result.dtype, dtype)
    assert result.shape == expected.shape, (result.shape, expected.shape)
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def reductions(dtype):
    shape = (2 * SIZE, 3)
    mine = of_rank(RANK, dtype, shape)
    for op, reference in OPS.items():
        expected = reference(everyones(dtype, shape))
        if op == "avg" and dtype.kind not in "iu":
            expected = everyones(dtype, shape).mean(axis=0)
            if SIZE not in (1, 2, 4):
                continue  # Rounded then: the library's own tests compare those.
        same(pyannulus.allreduce(mine, op), expected, dtype)
        own = mine.copy()
        assert pyannulus.allreduce(own, op=op, out=own) is own
        same(own, expected, dtype)
        root = SIZE - 1
        result = pyannulus.reduce(mine, root, op)
        assert (result is not None) == (RANK == root)
        if RANK == root:
            same(result, expected, dtype)
        part = expected[2 * RANK:2 * RANK + 2]
        same(pyannulus.reduce_scatter(mine, op), part, dtype)
        own = mine.copy()
        pyannulus.reduce_scatter(own, op, out=own[2 * RANK:2 * RANK + 2])
        same(own[2 * RANK:2 * RANK + 2], part, dtype)
    same(mine, of_rank(RANK, np.float64, shape), dtype)  # Inputs are left alone.


def bits_and_bools():
    flags = np.array([False, RANK == 0, RANK != 0, True])
    alone = SIZE == 1
    for op, expected in (("sum", [False, True, not alone, True]), ("max", [False, True, not alone, True]), ("bor", [False, True, not alone, True]),
                         ("prod", [False, alone, False, True]), ("min", [False, alone, False, True]), ("band", [False, alone, False, True])):
        result = pyannulus.allreduce(flags, op)
        assert result.dtype == bool and (result == expected).all(), (op, result)
    for dtype in (np.int8, np.uint16, np.int64):
        words = np.array([1 << RANK, 3, RANK], dtype)
        everyone = np.array([[1 << rank, 3, rank] for rank in range(SIZE)], dtype)
        for op, combine in (("band", np.bitwise_and), ("bor", np.bitwise_or), ("bxor", np.bitwise_xor)):
            assert (pyannulus.allreduce(words, op) == combine.reduce(everyone)).all(), (op, dtype)


def complex_numbers():
    for dtype in (np.complex64, np.complex128):
        everyone = np.array([[1 + 1j, 2 - rank * 1j, 3] for rank in range(SIZE)], dtype)
        mine = everyone[RANK].copy()
        assert (pyannulus.allreduce(mine) == everyone.sum(axis=0)).all()
        assert (pyannulus.allreduce(mine, "prod") == everyone.prod(axis=0)).all()
        # Aligned to a half of an element.
        half = np.zeros(mine.nbytes + 3 * mine.itemsize // 2, np.uint8)
        begin = -half.ctypes.data % mine.itemsize + mine.itemsize // 2
        odd = half[begin:begin + mine.nbytes].view(dtype)
        odd[:] = mine
        assert (pyannulus.allreduce(odd, out=odd) == everyone.sum(axis=0)).all()


def movements(dtype):
    mine = of_rank(RANK, dtype, (2, 3))
    joined = everyones(dtype, (2, 3)).reshape(2 * SIZE, 3)
    same(pyannulus.allgather(mine), joined, dtype)
    out = np.zeros((SIZE, 6), dtype)
    assert pyannulus.allgather(mine, out=out) is out  # As many elements in another shape.
    same(out.reshape(joined.shape), joined, dtype)
    out = np.zeros(joined.shape, dtype)
    out[2 * RANK:2 * RANK + 2] = mine
    same(pyannulus.allgather(out[2 * RANK:2 * RANK + 2], out=out), joined, dtype)
    for root in range(SIZE):
        result = pyannulus.gather(mine, root)
        assert (result is not None) == (RANK == root)
        if RANK == root:
            same(result, joined, dtype)
        source = joined.astype(dtype)
        out = None if RANK == root else np.zeros((2, 3), dtype)
        same(pyannulus.scatter(source if RANK == root else None, root, out), of_rank(RANK, np.float64, (2, 3)), dtype)
        own = of_rank(RANK, dtype, (5,))
        own.flags.writeable = RANK != root  # The root's is only read.
        assert pyannulus.broadcast(own, root) is own
        same(own, of_rank(root, np.float64, (5,)), dtype)
    sent = of_rank(RANK, dtype, (SIZE, 4))
    expected = np.stack([of_rank(rank, np.float64, (SIZE, 4))[RANK] for rank in range(SIZE)])
    same(pyannulus.alltoall(sent), expected, dtype)


def parts(dtype):
    """Parts of different sizes, one of them empty: rank r's has r rows."""
    counts = list(range(SIZE))
    total = sum(counts)
    mine = of_rank(RANK, dtype, (RANK, 3))
    joined = np.concatenate([of_rank(rank, np.float64, (rank, 3)) for rank in counts])
    same(pyannulus.allgatherv(mine, counts), joined, dtype)
    own = slice(sum(counts[:RANK]), sum(counts[:RANK + 1]))
    out = np.zeros((total, 3), dtype)
    out[own] = mine
    same(pyannulus.allgatherv(out[own], np.array(counts), out), joined, dtype)  # In place.
    for root in range(SIZE):
        result = pyannulus.gatherv(mine, counts if RANK == root else None, root)
        assert (result is not None) == (RANK == root)
        if RANK == root:
            same(result, joined, dtype)
            same(pyannulus.scatterv(joined.astype(dtype), counts, root), of_rank(RANK, np.float64, (RANK, 3)), dtype)
        else:
            same(pyannulus.scatterv(None, root=root, out=np.empty((RANK, 3), dtype)), mine.astype(np.float64), dtype)
    everything = of_rank(RANK, dtype, (total, 3))
    expected = everyones(dtype, (total, 3)).max(axis=0)
    same(pyannulus.reduce_scatterv(everything, counts, "max"), expected[own], dtype)
    # Rank r sends r + s rows to rank s.
    rows = [RANK + rank for rank in range(SIZE)]
    sent = of_rank(RANK, dtype, (sum(rows), 2))
    came = []
    for source in range(SIZE):
        first = sum(source + rank for rank in range(RANK))
        whole = of_rank(source, np.float64, (sum(source + rank for rank in range(SIZE)), 2))
        came.append(whole[first:first + source + RANK])
    same(pyannulus.alltoallv(sent, rows, rows), np.concatenate(came), dtype)


def operations():
    """Reductions of the user's."""
    ones = np.ones(1000, np.float32)
    scaled = pyannulus.premul_sum(RANK + 1)
    assert (pyannulus.allreduce(ones, scaled) == SIZE * (SIZE + 1) / 2).all()
    scaled.destroy()
    try:
        pyannulus.allreduce(ones, scaled)
    except pyannulus.InvalidArgument:
        pass
    else:
        raise AssertionError("a destroyed operation still works")
    logs = pyannulus.reduction(np.logaddexp)  # A ufunc writes its third argument.
    for dtype in ("float32", "float64", "float16"):
        values = np.full(3000, 0.5 * RANK, dtype)
        right = np.logaddexp.reduce([0.5 * rank for rank in range(SIZE)])
        assert np.allclose(pyannulus.allreduce(values, logs).astype(np.float64), right, rtol=1e-2 if dtype == "float16" else 1e-5)
    returning = pyannulus.reduction(lambda left, right, out: left | right)
    bits = np.full((4, 5), 1 << RANK, np.int64)
    assert (pyannulus.reduce_scatter(np.tile(bits, (SIZE, 1)), returning) == (1 << SIZE) - 1).all()
    assert all((each == (1 << SIZE) - 1).all() for each in pyannulus.allreduce_group([bits, bits * 1], returning))
    other = pyannulus.world().dup()
    try:
        other.allreduce(ones, logs)
    except ValueError as error:
        assert "another communicator" in str(error)
    else:
        raise AssertionError("an operation served another communicator")
    other.close()


def functions_that_fail():
    """What a reduction's function raises comes out of wait, and everyone else's work is aborted."""
    ones = np.ones(1000, np.float32)

    def fails(left, right, out):
        raise KeyError(f"rank {RANK}")

    def calls(left, right, out):
        world.barrier()

    def waits(left, right, out):
        pending.wait()

    for function, kind, words in (fails, KeyError, f"rank {RANK}"), (calls, ValueError, "reduction function"), \
            (waits, ValueError, "reduction function"):
        with pyannulus.world().dup() as world:
            op = world.reduction(function)
            pending = world.allreduce_async(ones, op)
            try:
                pending.wait()
            except kind as error:
                assert words in str(error), error
                assert function.__name__ in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            except pyannulus.Aborted:
                pass  # Another rank's function was the first.
            else:
                raise AssertionError("an exception was lost")


def messages(dtype):
    if SIZE == 1:
        return
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    mine = of_rank(RANK, dtype, (100,))
    sending = pyannulus.send_async(mine, right)
    same(pyannulus.recv(np.zeros(100, dtype), left), of_rank(left, np.float64, (100,)), dtype)
    assert sending.wait() is None
    # The later tag first, and from whichever rank.
    sending = [pyannulus.send_async(mine, right, tag=tag) for tag in (3, 4)]
    received = pyannulus.Received()
    for source, tag, got_tag in ((left, 4, 4), (None, None, 3)):
        got = pyannulus.recv(np.zeros(100, dtype), source, tag=tag, received=received)
        same(got, of_rank(left, np.float64, (100,)), dtype)
        assert (received.source, received.tag, received.count) == (left, got_tag, 100)
    for each in sending:
        each.wait()
    pyannulus.send(mine, right, tag=9) if RANK % 2 == 0 else None
    later = pyannulus.Received()
    request = pyannulus.recv_async(np.zeros(100, dtype), tag=9, received=later)
    pyannulus.send(mine, right, tag=9) if RANK % 2 == 1 else None
    same(request.wait(), of_rank(left, np.float64, (100,)), dtype)
    assert (later.source, later.tag) == (left, 9)
    exchanges(dtype, mine, right, left)


def exchanges(dtype, mine, right, left):
    expected = of_rank(left, np.float64, (100,))
    for tag in (0, 5):
        into = np.zeros(100, dtype)
        assert pyannulus.sendrecv(mine, right, into, left, tag=tag) is into
        same(into, expected, dtype)
    # Parts of different sizes; large enough to wait for their receives.
    large = np.full(300000 + RANK, RANK, np.int64)
    into = np.zeros(300000 + left, np.int64)
    assert (pyannulus.sendrecv_async(large, right, into, left).wait() == left).all()
    assert (pyannulus.with_options(label="pass").sendrecv(large, right, np.zeros_like(into), left) == left).all()
    with pyannulus.group() as group:
        first = group.sendrecv_async(mine, right, np.zeros(100, dtype), left)
    same(first.wait(), expected, dtype)
    # Where one part is refused, neither is made.
    for words, call in (("contiguous", lambda: pyannulus.sendrecv(mine, right, np.zeros((100, 2), dtype)[:, 0], left)),
                        ("99", lambda: pyannulus.sendrecv(mine, right, into, 99)),
                        ("source is -1", lambda: pyannulus.sendrecv(mine, right, into, -1)),
                        ("overlap", lambda: pyannulus.sendrecv(mine, right, mine, left)),
                        ("overlap", lambda: pyannulus.sendrecv(large, right, large[1:], left))):
        try:
            call()
        except (pyannulus.InvalidArgument, ValueError) as error:
            assert words in str(error), error
        else:
            raise AssertionError("a wrong exchange was accepted")
    # An operation's name is no rank, and any rank is told by None.
    for words, call in (("incompatible", lambda: pyannulus.send(mine, "max")),
                        ("incompatible", lambda: pyannulus.send(mine, right, tag="max")),
                        ("incompatible", lambda: pyannulus.broadcast(mine, "sum")),
                        ("peer is -1", lambda: pyannulus.recv(into, -1)),
                        ("tag is -1", lambda: pyannulus.recv(into, left, tag=-1))):
        try:
            call()
        except (TypeError, ValueError) as error:
            assert words in str(error), error
        else:
            raise AssertionError("a name or a number that stands for no rank was accepted")
    same(pyannulus.sendrecv(mine, right, np.zeros(100, dtype), left), expected, dtype)


def shapes():
    pyannulus.barrier()
    assert pyannulus.barrier_async().wait() is None
    assert pyannulus.allreduce(np.array(2.5)).shape == ()
    assert pyannulus.allgather(np.array(RANK)).tolist() == list(range(SIZE))
    assert pyannulus.allreduce(np.empty((0, 3), np.float32)).shape == (0, 3)
    large = np.full(1 << 20, RANK + 1, np.float32)
    assert (pyannulus.allreduce(large, out=large) == SIZE * (SIZE + 1) / 2).all()


def groups():
    arrays = [of_rank(RANK, np.dtype(name), shape)
              for name in ("float32", "int32") for shape in ((3,), (200, 7), (0,), (), (5000,))]
    expected = [everyones(array.dtype, array.shape).sum(axis=0) for array in arrays]
    for result, array, right in zip(pyannulus.allreduce_group(arrays), arrays, expected):
        same(result, right, array.dtype)
    request = pyannulus.allreduce_group_async(arrays, "sum", in_place=True)
    alone = pyannulus.allreduce_async(np.array([1.0]))  # Behind it.
    assert all(result is array for result, array in zip(request.wait(), arrays))
    for array, right in zip(arrays, expected):
        same(array, right, array.dtype)
    assert alone.wait()[0] == SIZE
    assert pyannulus.allreduce_group([]) == []
    with pyannulus.group() as group:
        mine = group.allreduce_async(np.array([1.0]))
        zeros = group.broadcast_async(np.full(3, RANK), 0)
        rows = group.allgatherv_async(np.full((1, 2), RANK), [1] * SIZE)
    assert mine.wait()[0] == SIZE and not zeros.wait().any() and rows.wait()[:, 1].tolist() == list(range(SIZE))
    with pyannulus.group():
        pass


def communicators():
    world = pyannulus.world()
    assert (world.rank, world.size, world.local_rank, world.local_size) == (RANK, SIZE, RANK, SIZE)
    assert (pyannulus.local_rank(), pyannulus.local_size()) == (RANK, SIZE)
    assert repr(world) == f"<pyannulus.Communicator rank {RANK} of {SIZE}>"
    backwards = world.split(colour=0, key=-RANK)
    assert backwards.rank == SIZE - 1 - RANK
    halves = world.split(RANK % 2)
    assert halves.allreduce(np.array([1.0]))[0] == halves.size == (SIZE + 1 - RANK % 2) // 2
    assert (world.split(0 if RANK == 0 else -1) is None) == (RANK != 0)
    with world.dup() as copy:
        assert copy.allgather(np.array([RANK])).tolist() == list(range(SIZE))
    assert copy.closed and not world.closed
    backwards.close()
    backwards.close()
    urgent = world.with_options(priority=5, label="urgent")
    requests = [world.with_options(priority=3).allreduce_async(np.array([1.0])) for _ in range(10)]
    assert urgent.allreduce(np.array([2.0]))[0] == 2 * SIZE and [each.wait()[0] for each in requests] == [SIZE] * 10
    assert (urgent.rank, urgent.size) == (RANK, SIZE)


def counters():
    with pyannulus.world().dup() as counted:
        counted.allreduce(np.ones(1000, np.float32))
        values = counted.counters()
    assert (values["collectives"], values["collectives_failed"], values["data_bytes"]) == (1, 0, 4000), values
    assert values["waited_ns"] <= values["driven_ns"] and -1 <= values["slowest_peer"] < SIZE, values
    sent = sum(each["sent_bytes"] for each in values["transports"].values())
    received = sum(each["received_bytes"] for each in values["transports"].values())
    assert (sent > 0) == (received > 0) == (SIZE > 1), values
    assert pyannulus.counters()["collectives"] > 1

def registered_memory():
    assert pyannulus.memory()["peers_mapped"] == 0
    array = pyannulus.empty((300, 1000), np.float32)
    assert array.shape == (300, 1000) and array.dtype == np.float32 and not array.any()
    assert pyannulus.empty(0).size == 0 and pyannulus.empty((), np.int64).shape == ()
    array += RANK + 1
    pyannulus.allreduce(array, out=array)
    same(array, np.full((300, 1000), SIZE * (SIZE + 1) / 2), array.dtype)
    memory = pyannulus.memory()
    assert memory["registered"] >= array.nbytes and memory["registered"] % 4096 == 0, memory
    if pyannulus.counters()["transports"]["shm"]["sent_bytes"] > 0:
        assert memory["peers_mapped"] > 0, memory
    assert memory["total"] == sum(memory[part] for part in ("staging", "links", "work", "requests")), memory
    pyannulus.barrier()
    del array
    assert pyannulus.memory()["registered"] < memory["registered"]


bits_and_bools()
complex_numbers()
for each in DTYPES:
    reductions(each)
    movements(each)
    parts(each)
    messages(each)
shapes()
groups()
operations()
if SIZE > 1:
    functions_that_fail()
registered_memory()
communicators()
counters()
assert pyannulus.is_initialized()
pyannulus.finalize()
pyannulus.finalize()
assert not pyannulus.is_initialized()
print("passed")
