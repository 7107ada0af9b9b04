"""Calls of plain arrays, which the extension module makes in one step: which are, what they give, and that nothing
happens for others, which get a closer look. Run on any number of ranks by annulus-run."""

import itertools
import sys

import numpy as np

import pyannulus
from pyannulus import _core

comm = pyannulus.Communicator(timeout_ms=20000)
RANK, SIZE = comm.rank, comm.size
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
UNEQUAL = (_core.ALLGATHERV, _core.REDUCE_SCATTERV, _core.GATHERV, _core.SCATTERV, _core.ALLTOALLV)
KINDS = (_core.ALLREDUCE, _core.REDUCE_SCATTER, _core.ALLGATHER, _core.BROADCAST, _core.BARRIER, _core.SEND, _core.RECV,
         _core.REDUCE, _core.GATHER, _core.SCATTER, _core.ALLTOALL, *UNEQUAL)


def ran(*call):
    """The result of a call, which is made in one step."""
    result = comm._ran(*call)
    assert result is not NotImplemented, call
    return result


def begun(*call):
    """The same, queued in one step and waited for."""
    request = comm._begun(*call)
    assert isinstance(request, pyannulus.Request), call
    result = request.wait()
    assert request.wait(timeout=0) is result and request.test() is True
    return result


def given_or_made(make, expected, kind, send, out, *more):
    """The result where there is an output, which is `out`, and where there is none."""
    for recv in (out, None):
        result = make(kind, send, recv, *more)
        assert type(result) is np.ndarray and (recv is None or result is recv), kind
        assert result is not send and result.dtype == expected.dtype and (result == expected).all(), kind
        assert recv is not None or result.shape == expected.shape, (kind, result.shape, expected.shape)


def at(root, make, expected, kind, send, out, *more):
    """The same of calls whose result only the root gets. What others give for it is not used."""
    if RANK == root:
        given_or_made(make, expected, kind, send, out, *more)
        return
    unused = np.full((1, 2), 7, np.int8)
    for recv in (unused, None):
        assert make(kind, send, recv, *more) is None and (unused == 7).all(), kind


def rooted(mine, root, make):
    """The kinds in which only the root has both arrays."""
    rows = len(mine)
    total = np.full_like(mine, SIZE * (SIZE + 1) // 2)
    at(root, make, total, _core.REDUCE, mine, np.zeros_like(mine), "sum", root)
    joined = np.repeat(np.arange(1, SIZE + 1, dtype=mine.dtype), 3 * rows).reshape(SIZE * rows, 3)
    at(root, make, joined, _core.GATHER, mine, np.zeros_like(joined), root)
    part = np.zeros_like(mine)
    if RANK == root:
        given_or_made(make, mine, _core.SCATTER, joined, part, root)
    else:
        for unused in (None, np.zeros((1, 2), np.int8)):
            assert make(_core.SCATTER, unused, part, root) is part
    assert (part == RANK + 1).all()
    # In place.
    own = mine.copy() if RANK == root else mine
    assert make(_core.REDUCE, own, own, "sum", root) is (own if RANK == root else None)
    assert RANK != root or (own == total).all()
    kept = np.zeros_like(joined)
    own = kept[rows * RANK:rows * (RANK + 1)]
    own[:] = mine
    assert make(_core.GATHER, own, kept, root) is (kept if RANK == root else None)
    assert RANK != root or (kept == joined).all()
    own = joined[rows * RANK:rows * (RANK + 1)] if RANK == root else part
    assert make(_core.SCATTER, joined if RANK == root else None, own, root) is own and (own == RANK + 1).all()
    # By the public names.
    out = np.zeros_like(mine)
    assert comm.reduce(mine, root, out=out) is (out if RANK == root else None)
    assert comm.gather(mine, root, out=kept) is (kept if RANK == root else None)
    assert comm.scatter(joined if RANK == root else None, root, part) is part and (part == RANK + 1).all()


def unequal(dtype, rows, make):
    """The kinds with parts of different lengths, of which rank 0 has an empty one."""
    counts = [rows * (rank % 2) + rank for rank in range(SIZE)]
    first = sum(counts[:RANK])
    mine = np.full((counts[RANK], 3), RANK + 1, dtype)
    joined = np.repeat(np.arange(1, SIZE + 1, dtype=dtype), [3 * count for count in counts]).reshape(-1, 3)
    whole = np.full_like(joined, RANK + 1)
    total = np.full_like(mine, SIZE * (SIZE + 1) // 2)
    for given in (counts, tuple(counts), np.array(counts), np.array(counts, np.int32)):
        given_or_made(make, joined, _core.ALLGATHERV, mine, np.zeros_like(joined), 0, 0, None, given)
        given_or_made(make, total, _core.REDUCE_SCATTERV, whole, np.zeros_like(mine), "sum", 0, given)
    kept = np.zeros_like(joined)
    own = kept[first:first + len(mine)]
    own[:] = mine
    assert make(_core.ALLGATHERV, own, kept, 0, 0, None, counts) is kept and (kept == joined).all()
    own = whole[first:first + len(mine)]
    assert make(_core.REDUCE_SCATTERV, whole, own, "sum", 0, counts) is own and (own == total).all()
    for root in range(SIZE):
        for unused in (None, counts, [1], "unused"):
            given = counts if RANK == root else unused
            at(root, make, joined, _core.GATHERV, mine, np.zeros_like(joined), root, 0, None, given)
            part = np.zeros_like(mine)
            if RANK == root:
                given_or_made(make, mine, _core.SCATTERV, joined, part, root, 0, given)
            else:
                assert all(make(_core.SCATTERV, each, part, root, 0, given) is part for each in (None, kept))
            assert (part == RANK + 1).all()
    sent = [rows * (RANK + rank) % 4 + rank for rank in range(SIZE)]
    got = [rows * (rank + RANK) % 4 + RANK for rank in range(SIZE)]
    exchanged = np.repeat(np.arange(1, SIZE + 1, dtype=dtype), [3 * count for count in got]).reshape(-1, 3)
    given_or_made(make, exchanged, _core.ALLTOALLV, np.full((sum(sent), 3), RANK + 1, dtype), np.zeros_like(exchanged), 0, 0,
                  sent, got)


def every_kind(dtype, rows, make):
    """Of arrays with so many rows of 3 elements."""
    def same(kind, send, recv, *more):
        assert make(kind, send, recv, *more) is recv, (kind, more)
        return recv

    mine = np.full((rows, 3), RANK + 1, dtype)
    total = SIZE * (SIZE + 1) // 2
    for op, expected in {"sum": total, "max": SIZE, "min": 1}.items():
        given_or_made(make, np.full_like(mine, expected), _core.ALLREDUCE, mine, np.zeros_like(mine), op)
    own = mine.copy()
    assert (same(_core.ALLREDUCE, own, own, "sum") == total).all()
    for in_place in (False, True):
        given = [mine.copy(), np.full(5, RANK + 1, np.int32), mine[:1].copy()]
        results = comm._begun_group(given, in_place, "sum").wait()
        assert [result is array for result, array in zip(results, given)] == [in_place] * 3
        assert all((result == total).all() and result.shape == array.shape for result, array in zip(results, given))
    parts = np.concatenate([mine] * SIZE)
    given_or_made(make, np.full_like(mine, total), _core.REDUCE_SCATTER, parts, np.zeros_like(mine), "sum")
    joined = np.repeat(np.arange(1, SIZE + 1, dtype=dtype), 3 * rows).reshape(SIZE * rows, 3)
    given_or_made(make, joined, _core.ALLGATHER, mine, np.zeros((SIZE, rows, 3), dtype).reshape(joined.shape), 0)
    gathered = same(_core.ALLGATHER, mine, np.zeros((SIZE, rows, 3), dtype), 0)
    assert all((gathered[rank] == rank + 1).all() for rank in range(SIZE))
    given_or_made(make, joined, _core.ALLTOALL, parts, np.zeros_like(parts), 0)
    for root in range(SIZE):
        rooted(mine, root, make)
        own = mine.copy()
        own.flags.writeable = RANK != root  # The root's is only read.
        assert (same(_core.BROADCAST, own, own, root) == root + 1).all()
    unequal(dtype, rows, make)
    arrived = np.zeros_like(mine)
    for sender in range(SIZE if SIZE > 1 else 0):
        for tag in (0, 7):
            if RANK == sender:
                same(_core.SEND, mine + mine.dtype.type(tag), None, NEXT, tag)
            if PREVIOUS == sender:
                assert (same(_core.RECV, None, arrived, PREVIOUS, tag) == PREVIOUS + 1 + tag).all()
            if SIZE > 1:
                exchange = (mine + mine.dtype.type(tag), NEXT, arrived, PREVIOUS, tag)
                for exchanged in (comm._exchanged, lambda *given: comm._begun_exchange(*given).wait()):
                    arrived[:] = 0
                    assert exchanged(*exchange) is arrived and (arrived == PREVIOUS + 1 + tag).all()
    same(_core.BARRIER, None, None, 0)


if sys.argv[1:] == ["unequal"]:  # With more ranks than a call has room for without memory.
    for make in (ran, begun):
        unequal(np.dtype("float32"), 5, make)
    print("passed")
    sys.exit()
for name, count in itertools.product(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
                                     (0, 1, 7, 3000)):
    every_kind(np.dtype(name), count, ran)
    every_kind(np.dtype(name), count, begun)
# A single number is one row.
for make in (ran, begun):
    given_or_made(make, np.arange(1.0, SIZE + 1), _core.ALLGATHER, np.array(RANK + 1.0), np.zeros(SIZE), 0)
    given_or_made(make, np.arange(1.0, SIZE + 1), _core.ALLGATHERV, np.array(RANK + 1.0), np.zeros(SIZE), 0, 0, None, [1] * SIZE)
    given_or_made(make, np.array(SIZE * (SIZE + 1) / 2), _core.ALLREDUCE, np.array(RANK + 1.0), np.zeros(()), "sum")

# -- Arrays that are not plain ---------------------------------------------------------------------------------------

good = np.ones((2 * SIZE, 4), np.float32)
part = np.ones((2, 4), np.float32)
wide = np.ones((SIZE + 1, 2 * SIZE, 4), np.float32)
frozen = good.copy()
frozen.flags.writeable = False
unaligned = np.frombuffer(bytearray(good.nbytes + 1), np.uint8)[1:].view(np.float32)
ODD = {
    "a list": [1.0, 2.0],
    "bytes": bytes(good.nbytes),
    "a memoryview": memoryview(good.copy()),
    "of a type without a letter": good.astype(complex),
    "of the other byte order": good.astype(">f4"),
    "of dates": good.astype("datetime64[s]"),
    "of a structure": np.zeros(2 * SIZE, [("a", np.float32)]),
    "of objects": good.astype(object),
    "not contiguous": np.ones((2 * SIZE, 8), np.float32)[:, ::2],
    "in Fortran's order": np.asfortranarray(good),
    "unaligned": unaligned,
    "backwards": good[::-1],
}
# What each kind would take, with the odd array in place of either.
FITS = {_core.ALLREDUCE: (good, good.copy(), "sum"), _core.REDUCE_SCATTER: (good, part.copy(), "sum"),
        _core.ALLGATHER: (part, good.copy(), 0), _core.SEND: (good, None, NEXT), _core.RECV: (None, good.copy(), NEXT),
        _core.REDUCE: (good, good.copy(), "sum"), _core.GATHER: (part, good.copy(), RANK), _core.SCATTER: (good, part.copy(), RANK),
        _core.ALLTOALL: (good, good.copy(), 0), _core.ALLGATHERV: (part, good.copy(), 0), _core.REDUCE_SCATTERV: (good, part.copy(), "sum"),
        _core.GATHERV: (part, good.copy(), RANK), _core.SCATTERV: (good, part.copy(), RANK), _core.ALLTOALLV: (good, good.copy(), 0)}
TWOS = [2] * SIZE
# What follows them: the root of a reduce, and the rows of each part.
MORE = {_core.REDUCE: (RANK,), _core.ALLGATHERV: (0, None, TWOS), _core.REDUCE_SCATTERV: (0, TWOS), _core.GATHERV: (0, None, TWOS),
        _core.SCATTERV: (0, TWOS), _core.ALLTOALLV: (0, TWOS, TWOS)}
before = comm.counters()


def declined(kind, send, recv, number, what, more=None):
    left = None if recv is None or recv is frozen else np.copy(recv)
    more = MORE.get(kind, ()) if more is None else more
    assert comm._ran(kind, send, recv, number, *more) is NotImplemented, (kind, what)
    assert comm._begun(kind, send, recv, number, *more) is NotImplemented, (kind, what)
    assert left is None or np.array_equal(left, recv), (kind, what)


def not_exchanged(send, recv):
    for function in (comm._exchanged, comm._begun_exchange):
        assert function(send, NEXT, recv, PREVIOUS, 0) is NotImplemented


for what, odd in ODD.items():
    for kind, (send, recv, number) in FITS.items():
        if send is not None:
            declined(kind, odd, recv, number, what)
        if recv is not None:
            declined(kind, send, odd, number, what)
    declined(_core.BROADCAST, odd, odd, 0, what)
    for send, recv in ((odd, good.copy()), (good, odd)):
        not_exchanged(send, recv)
    assert comm._begun_group([good, odd], False, "sum") is NotImplemented
    assert comm._begun_group([odd], True, "sum") is NotImplemented
for send, recv in ((good, frozen), (None, good), (good, None), (good, good), (good[:SIZE + 1], good[SIZE:])):
    not_exchanged(send, recv)
for wrong in (None, 1.0, True, -1, 2**31, np.int64(0)):
    for exchange in ((good, wrong, good.copy(), PREVIOUS, 0), (good, NEXT, good.copy(), wrong, 0), (good, NEXT, good.copy(), PREVIOUS, wrong)):
        for function in (comm._exchanged, comm._begun_exchange):
            assert function(*exchange) is NotImplemented, exchange[1:]
for kind, (send, recv, number) in FITS.items():
    if recv is not None:
        declined(kind, send, frozen, number, "read-only")
    declined(kind, None, None, number, "none")
    if kind not in (_core.SEND, _core.RECV, _core.REDUCE):
        declined(kind, send, recv, number, "a collective with a tag", (1, *MORE.get(kind, ())[1:]))
    for wrong in (None, -1, 1.0, 2**31, 2**70):
        declined(kind, send, recv, number, "a wrong tag", (wrong, *MORE.get(kind, ())[1:]))
    if kind not in UNEQUAL:
        for counts in ((TWOS,), (None, TWOS)):
            declined(kind, send, recv, number, "counts without a use", (*MORE.get(kind, (0,)), *counts))
    for wrong in (None, 1.5, True, "mean", b"sum", -1, 2**31, 2**70, np.int64(0), [0], object()):
        declined(kind, send, recv, wrong, f"number {wrong!r}")
for kind, (send, recv, number) in FITS.items():
    if number == "sum":
        for wrong in (0, _core.OPS["max"], 16, 99):
            declined(kind, send, recv, wrong, "an operation's number, which is no name")
            assert comm._begun_group([good], False, wrong) is NotImplemented
declined(_core.BROADCAST, frozen, frozen, NEXT, "read-only") if SIZE > 1 else None
declined(_core.ALLREDUCE, good, good.astype(np.float64), "sum", "of two types")
declined(_core.ALLREDUCE, good, good.astype(np.int32), "sum", "of two types of one size")
declined(_core.ALLREDUCE, good, part.repeat(SIZE + 1, axis=0), "sum", "of two lengths")
declined(_core.ALLGATHER, good, good.copy(), 0, "too short") if SIZE > 1 else None
declined(_core.ALLGATHER, part, wide.copy(), 0, "too long")
declined(_core.REDUCE_SCATTER, np.ones((2 * SIZE + 1, 4), np.float32), part.copy(), "sum", "not divisible")
declined(_core.REDUCE_SCATTER, good, wide.copy(), "sum", "too long")
declined(_core.SEND, good, good.copy(), NEXT, "with an output")
declined(_core.RECV, good, good.copy(), NEXT, "with an input")
declined(_core.ALLTOALL, np.ones((2 * SIZE + 1, 4), np.float32), np.ones((2 * SIZE + 1, 4), np.float32), 0, "not divisible") if SIZE > 1 else None
declined(_core.ALLTOALL, good, wide.copy(), 0, "too long")
declined(_core.REDUCE, good, part.copy(), "sum", "too short") if SIZE > 1 else None
declined(_core.GATHER, part, wide.copy(), RANK, "too long")
declined(_core.SCATTER, good, wide.copy(), RANK, "too long")
declined(_core.SCATTER, None, part.copy(), RANK, "nothing to scatter")
declined(_core.SCATTER, good, None, NEXT, "nowhere for the part") if SIZE > 1 else None
for kind in UNEQUAL:
    send, recv, number = FITS[kind]
    more = MORE[kind]
    declined(kind, send, recv, number, "no counts", ())
    declined(kind, send, good[:1].copy(), number, "of another length")
    declined(kind, good[:1], recv, number, "of fewer rows")
    for wrong in (None, 2, "22", {2: 2}, TWOS + [0], TWOS[1:], [2.0] * SIZE, [np.int64(2)] * SIZE, [True] * SIZE,
                  [-2] * SIZE, [2**31] * SIZE, [2**70] * SIZE, [3] + [2] * (SIZE - 1), iter(TWOS), np.array([TWOS]), np.array(TWOS + [0]), np.array(TWOS, float), np.array(TWOS, np.int16),
                  np.array(TWOS + TWOS)[::2] if SIZE > 1 else 2, np.array(TWOS, ">i8"), np.ma.array(TWOS), np.array(2),
                  np.array([-2] * SIZE), np.array([2**31] * SIZE), np.array([-2] * SIZE, np.int32)):
        for index in (1, 2):
            if len(more) > index and more[index] is not None:
                declined(kind, send, recv, number, f"counts {wrong!r}", (*more[:index], wrong, *more[index + 1:]))
# The product of the number of rows and their length is more than a number holds.
declined(_core.ALLGATHERV, np.ones((0, 2**60), np.float32), np.ones(0, np.float32), 0, "too long",
         (0, None, [16 if rank == NEXT else 0 for rank in range(SIZE)])) if SIZE > 1 else None
for kind in (0, 999, 2**40, "sum", None):
    if kind not in KINDS:
        declined(kind, good, good.copy(), 0, "no kind")
declined(_core.BARRIER, good, good.copy(), 0, "a barrier with arrays")
for arguments, function in itertools.product(((), (1, good, good), (1, good, good, 0, 0, None, None, None)), (comm._ran, comm._begun)):
    try:
        function(*arguments)
        raise AssertionError(f"{len(arguments)} arguments were taken")
    except TypeError as error:
        assert "kind, send, recv, number and perhaps tag and counts" in str(error), error
for wrong in (([], False, "sum"), ((good,), False, "sum"), ([good], False, "mean"), ([frozen], True, "sum")):
    assert comm._begun_group(*wrong) is NotImplemented
try:
    comm._begun_group([good])
    raise AssertionError("too few arguments were taken")
except TypeError as error:
    assert "group takes arrays, in_place and op" in str(error), error
after = comm.counters()
assert (after["collectives"], after["messages"]) == (before["collectives"], before["messages"])

# -- Calls that the library refuses, and ends ------------------------------------------------------------------------

for (kind, arguments), function in itertools.product(
        ((_core.BROADCAST, (good, good, 99)), (_core.BROADCAST, (good, good, 2**30 - 1)), (_core.BROADCAST, (good, good, 2**31 - 1)), (_core.SEND, (good, None, RANK)), (_core.REDUCE, (good, good, "sum", 99)),
         (_core.GATHER, (good, None, 99)), (_core.SCATTER, (None, good, 99)), (_core.GATHERV, (good, None, 99)),
         (_core.SCATTERV, (None, good, 99))), (comm._ran, comm._begun)):
    try:
        function(kind, *arguments)
        raise AssertionError(f"kind {kind} was taken")
    except pyannulus.InvalidArgument as error:
        assert error.rank == RANK and error.advice, error
for function in (comm._exchanged, comm._begun_exchange):
    try:
        function(good, RANK, good.copy(), NEXT, 0)
        raise AssertionError("an exchange with itself was taken")
    except pyannulus.InvalidArgument as error:
        assert "call 0 of the group" in str(error), error
overlapping = np.ones(5, np.float32)
try:
    comm._ran(_core.ALLREDUCE, overlapping[:4], overlapping[1:], "sum")
    raise AssertionError("overlapping arrays were taken")
except pyannulus.InvalidArgument as error:
    assert "overlap" in str(error), error
every_kind(np.dtype("float32"), 5, ran)
request = comm._begun(_core.ALLREDUCE, good, good.copy(), "sum")
for timeout, kind in (("soon", TypeError), (float("nan"), ValueError)):
    try:
        request.wait(timeout)
        raise AssertionError(f"a timeout of {timeout!r} was taken")
    except kind:
        pass
for given, named in (((1, 2), {}), ((), {"seconds": 1}), ((1,), {"timeout": 1})):
    try:
        request.wait(*given, **named)
        raise AssertionError("wrong arguments were taken")
    except TypeError:
        pass
request.wait(float("inf"))
try:
    type(request)()
    raise AssertionError("a request was made of nothing")
except TypeError as error:
    assert "asynchronous calls" in str(error), error
# An array is given back when its call is over: only then may it be resized.
for _ in range(3):
    lent = np.ones(10, np.float32)
    assert ran(_core.ALLREDUCE, lent, lent, "sum") is lent
    lent.resize(20)
    lent = np.asfortranarray(np.ones((4, 4), np.float32))
    assert comm._ran(_core.ALLREDUCE, np.ones((4, 4), np.float32), lent, "sum") is NotImplemented
    lent.resize(20)
    lent = np.ones(10, np.float32)
    request = comm._begun(_core.ALLREDUCE, lent, lent, "sum")
    try:
        lent.resize(20)
        raise AssertionError("a lent array was resized")
    except ValueError:
        pass
    held = sys.getrefcount(lent)
    request.wait()
    assert sys.getrefcount(lent) == held - 2, "the call has both arrays until it is done"
    del request
    lent.resize(20)
    if SIZE > 1:
        sent, got = np.ones(10, np.float32), np.zeros(10, np.float32)
        request = comm._begun_exchange(sent, NEXT, got, PREVIOUS, 0)
        for each in (sent, got):
            try:
                each.resize(20)
                raise AssertionError("a lent array was resized")
            except ValueError:
                pass
        assert request.wait() is got
        del request, each
        sent.resize(20)
        got.resize(20)
comm.close()
for function in (comm._ran, comm._begun):
    try:
        function(_core.ALLREDUCE, good, good.copy(), "sum")
        raise AssertionError("a closed communicator was used")
    except pyannulus.Aborted as error:
        assert "closed" in str(error), error
print("passed")
