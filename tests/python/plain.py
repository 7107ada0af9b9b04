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
KINDS = (_core.ALLREDUCE, _core.REDUCE_SCATTER, _core.ALLGATHER, _core.BROADCAST, _core.BARRIER, _core.SEND, _core.RECV)


def ran(kind, send, recv, number, tag=0):
    """The call, which is made in one step."""
    assert comm._ran(kind, send, recv, number, tag) is True, (kind, send, recv, number)
    return recv


def ran_as(kind, send, recv, number, root=0):
    """The same for a kind that is queued with a closer look only."""
    assert comm._ran(kind, send, recv, number, root) in (True, recv), (kind, number)
    return recv


def rooted(mine, root):
    """The kinds in which only the root has both arrays. What others give for the other one is not used."""
    rows, unused = len(mine), np.zeros((1, 2), np.int8)
    total = SIZE * (SIZE + 1) // 2
    out = np.zeros_like(mine) if RANK == root else unused
    ran_as(_core.REDUCE, mine, out, "sum", root)
    assert (out == (total if RANK == root else 0)).all()
    joined = np.zeros((SIZE * rows, 3), mine.dtype) if RANK == root else None
    ran_as(_core.GATHER, mine, joined, root)
    assert RANK != root or all((joined[rows * rank:rows * (rank + 1)] == rank + 1).all() for rank in range(SIZE))
    source = np.repeat(np.arange(1, SIZE + 1, dtype=mine.dtype), 3 * rows).reshape(SIZE * rows, 3)
    part = np.zeros_like(mine)
    ran_as(_core.SCATTER, source if RANK == root else None, part, root)
    assert (part == RANK + 1).all()
    # By the public names.
    assert comm.reduce(mine, root, out=out if RANK == root else None) is (out if RANK == root else None)
    assert comm.gather(mine, root, out=joined) is joined
    assert comm.scatter(source if RANK == root else None, root, part) is part and (part == RANK + 1).all()


def begun(kind, send, recv, number, tag=0):
    """The same, queued in one step and waited for."""
    request = comm._begun(kind, send, recv, number, tag)
    assert isinstance(request, pyannulus.Request), (kind, send, recv, number)
    assert request.wait() is recv and request.wait(timeout=0) is recv and request.test() is True
    return recv


def every_kind(dtype, rows, ran):
    """Of arrays with so many rows of 3 elements."""
    mine = np.full((rows, 3), RANK + 1, dtype)
    total = SIZE * (SIZE + 1) // 2
    results = {"sum": total, "max": SIZE, "min": 1}
    for op, expected in results.items():
        assert (ran(_core.ALLREDUCE, mine, np.zeros_like(mine), op) == expected).all()
    own = mine.copy()
    assert (ran(_core.ALLREDUCE, own, own, "sum") == total).all()
    for made in (comm._ran(_core.ALLREDUCE, mine, None, "sum"), comm._begun(_core.ALLREDUCE, mine, None, "sum").wait()):
        assert type(made) is np.ndarray and made is not mine and made.dtype == mine.dtype and made.shape == mine.shape
        assert (made == total).all()
    for in_place in (False, True):
        given = [mine.copy(), np.full(5, RANK + 1, np.int32), mine[:1].copy()]
        results = comm._begun_group(given, in_place, "sum").wait()
        assert [result is array for result, array in zip(results, given)] == [in_place] * 3
        assert all((result == total).all() and result.shape == array.shape for result, array in zip(results, given))
    parts = np.concatenate([mine] * SIZE)
    assert (ran(_core.REDUCE_SCATTER, parts, np.zeros_like(mine), "sum") == total).all()
    gathered = ran(_core.ALLGATHER, mine, np.zeros((SIZE, rows, 3), dtype), 0)
    assert all((gathered[rank] == rank + 1).all() for rank in range(SIZE))
    for root in range(SIZE):
        rooted(mine, root)
    exchanged = ran_as(_core.ALLTOALL, parts, np.zeros_like(parts), 0)
    assert all((exchanged[rows * rank:rows * (rank + 1)] == rank + 1).all() for rank in range(SIZE))
    for root in range(SIZE):
        own = mine.copy()
        own.flags.writeable = RANK != root  # The root's is only read.
        assert (ran(_core.BROADCAST, own, own, root) == root + 1).all()
    arrived = np.zeros_like(mine)
    for sender in range(SIZE if SIZE > 1 else 0):
        for tag in (0, 7):
            if RANK == sender:
                ran(_core.SEND, mine + mine.dtype.type(tag), None, NEXT, tag)
            if PREVIOUS == sender:
                assert (ran(_core.RECV, None, arrived, PREVIOUS, tag) == PREVIOUS + 1 + tag).all()
            if SIZE > 1:
                assert comm._exchanged(mine + mine.dtype.type(tag), NEXT, arrived, PREVIOUS, tag) is True
                assert (arrived == PREVIOUS + 1 + tag).all()
    ran(_core.BARRIER, None, None, 0)


for name, count in itertools.product(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
                                     (0, 1, 7, 3000)):
    every_kind(np.dtype(name), count, ran)
    every_kind(np.dtype(name), count, begun)

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
        _core.ALLGATHER: (part, good.copy(), 0), _core.SEND: (good, None, NEXT), _core.RECV: (None, good.copy(), NEXT)}
before = comm.counters()


def declined(kind, send, recv, number, what):
    left = None if recv is None or recv is frozen else np.copy(recv)
    assert comm._ran(kind, send, recv, number) is None, (kind, what)
    assert comm._begun(kind, send, recv, number) is None, (kind, what)
    assert left is None or np.array_equal(left, recv), (kind, what)


for what, odd in ODD.items():
    for kind, (send, recv, number) in FITS.items():
        if send is not None:
            declined(kind, odd, recv, number, what)
        if recv is not None:
            declined(kind, send, odd, number, what)
    declined(_core.BROADCAST, odd, odd, 0, what)
    for send, recv in ((odd, good.copy()), (good, odd)):
        assert comm._exchanged(send, NEXT, recv, PREVIOUS, 0) is None, what
    assert comm._begun_group([good, odd], False, "sum") is None and comm._begun_group([odd], True, "sum") is None
for send, recv in ((good, frozen), (None, good), (good, None)):
    assert comm._exchanged(send, NEXT, recv, PREVIOUS, 0) is None
for kind, (send, recv, number) in FITS.items():
    if recv is not None:
        declined(kind, send, frozen, number, "read-only")
    declined(kind, None, None, number, "none")
    assert kind in (_core.SEND, _core.RECV) or comm._ran(kind, send, recv, number, 1) is None, "a collective with a tag"
    for wrong in (None, -1, 1.0, 2**31, 2**70):
        assert comm._ran(kind, send, recv, number, wrong) is None, "a wrong tag"
    for wrong in (None, 1.5, True, "mean", b"sum", -1, 2**31, 2**70, np.int64(0), [0], object()):
        declined(kind, send, recv, wrong, f"number {wrong!r}")
for kind, (send, recv, number) in FITS.items():
    if number == "sum":
        for wrong in (0, _core.OPS["max"], 16, 99):
            declined(kind, send, recv, wrong, "an operation's number, which is no name")
            assert comm._begun_group([good], False, wrong) is None
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
for kind in (0, 999, 2**40, "sum", None):
    if kind not in KINDS:
        declined(kind, good, good.copy(), 0, "no kind")
declined(_core.BARRIER, good, good.copy(), 0, "a barrier with arrays")
for arguments, function in itertools.product(((), (1, good, good), (1, good, good, 0, 0, 0)), (comm._ran, comm._begun)):
    try:
        function(*arguments)
        raise AssertionError(f"{len(arguments)} arguments were taken")
    except TypeError as error:
        assert "kind, send, recv, number and perhaps tag" in str(error), error
assert comm._begun_group([], False, "sum") is None and comm._begun_group((good,), False, "sum") is None
assert comm._begun_group([good], False, "mean") is None and comm._begun_group([frozen], True, "sum") is None
try:
    comm._begun_group([good])
    raise AssertionError("too few arguments were taken")
except TypeError as error:
    assert "group takes arrays, in_place and op" in str(error), error
after = comm.counters()
assert (after["collectives"], after["messages"]) == (before["collectives"], before["messages"])

# -- Calls that the library refuses, and ends ------------------------------------------------------------------------

for (kind, arguments), function in itertools.product(
        ((_core.BROADCAST, (good, good, 99)), (_core.SEND, (good, None, RANK))), (comm._ran, comm._begun)):
    try:
        function(kind, *arguments)
        raise AssertionError(f"kind {kind} was taken")
    except pyannulus.InvalidArgument as error:
        assert error.rank == RANK and error.advice, error
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
    ran(_core.ALLREDUCE, lent, lent, "sum")
    lent.resize(20)
    lent = np.asfortranarray(np.ones((4, 4), np.float32))
    assert comm._ran(_core.ALLREDUCE, np.ones((4, 4), np.float32), lent, "sum") is None
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
comm.close()
for function in (comm._ran, comm._begun):
    try:
        function(_core.ALLREDUCE, good, good.copy(), "sum")
        raise AssertionError("a closed communicator was used")
    except pyannulus.Aborted as error:
        assert "closed" in str(error), error
print("passed")
