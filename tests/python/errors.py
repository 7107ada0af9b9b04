"""Wrong calls: those that this rank can see are refused at once, without harm; the others fail on every rank alike."""

import pickle
import socket

import numpy as np

import pyannulus


def refuses(kind, words, function, *args, **settings):
    try:
        function(*args, **settings)
    except kind as error:
        assert words in str(error), (words, str(error))
        return error
    raise AssertionError(f"{function.__name__} took {args} {settings}; expected {kind.__name__}: {words}")


refuses(RuntimeError, "call pyannulus.init() first", pyannulus.rank)
refuses(TypeError, "unknown settings: colour; there are ", pyannulus.init, colour=1)
refuses(pyannulus.InvalidArgument, 'rank is "one"; allowed:', pyannulus.init, rank="one")
refuses(pyannulus.InvalidArgument, 'transport is "3"', pyannulus.init, transport=3)
refuses(TypeError, "rank takes a str or an int, not 1.5", pyannulus.init, rank=1.5)
error = refuses(pyannulus.InvalidArgument, "transport", pyannulus.init, transport="pigeon")
assert error.status is pyannulus.Status.INVALID_ARGUMENT and isinstance(error, ValueError)
pyannulus.init(timeout_ms=20000)
refuses(RuntimeError, "was called before", pyannulus.init)
RANK, SIZE = pyannulus.rank(), pyannulus.size()

# -- Seen by this rank alone; the communicator stays usable -------------------------------------------------------------

grid = np.ones((4, 6))
frozen = np.ones(3)
frozen.flags.writeable = False
refuses(TypeError, "array is a list, not a numpy array", pyannulus.allreduce, [1, 2])
refuses(TypeError, "dtype('float128'); Annulus knows int8,", pyannulus.allreduce, np.ones(2, np.longdouble))
refuses(TypeError, "in this machine's byte order", pyannulus.allreduce, np.ones(2, ">f4"))
refuses(TypeError, "Annulus knows int8,", pyannulus.send, np.zeros(3, []), (RANK + 1) % SIZE)
refuses(ValueError, "array is not C-contiguous (shape (6, 4)", pyannulus.allreduce, grid.T)
refuses(ValueError, "out is not C-contiguous", pyannulus.allreduce, np.ones((4, 3)), out=grid[:, ::2])
refuses(ValueError, "unknown op 'mean'; there are sum, prod, min, max, avg", pyannulus.allreduce, grid, "mean")
for op in (0, 99, None, ["sum"]):
    for arguments in ((pyannulus.allreduce, grid), (pyannulus.reduce_scatter, np.ones(SIZE)), (pyannulus.reduce, grid, 0),
                      (pyannulus.reduce_scatterv, np.ones(SIZE), [1] * SIZE), (pyannulus.allreduce_group, [grid])):
        refuses(TypeError, f"op is a {type(op).__name__}, not a name or", *arguments, op)
refuses(ValueError, "out is read-only", pyannulus.allreduce, np.ones(3), out=frozen)
refuses(ValueError, "array is read-only", pyannulus.broadcast, frozen, (RANK + 1) % SIZE)
refuses(ValueError, "array is read-only", pyannulus.recv, frozen, (RANK + 1) % SIZE)
refuses(TypeError, "out has dtype float32, array has float64", pyannulus.allreduce, grid, out=grid.astype(np.float32))
refuses(ValueError, "out has 3 elements, the result 24", pyannulus.allreduce, grid, out=np.ones(3))
refuses(ValueError, f"which {SIZE} ranks cannot share", pyannulus.reduce_scatter, np.ones(SIZE + 1))
refuses(ValueError, f"which {SIZE} ranks cannot share", pyannulus.reduce_scatter, np.ones((SIZE + 1, SIZE)), out=np.ones(SIZE + 1))
refuses(ValueError, f"which {SIZE} ranks cannot share", pyannulus.alltoall, np.ones(SIZE - 1))
refuses(ValueError, f"counts has {SIZE + 1} entries; there are {SIZE} ranks", pyannulus.allgatherv, grid, [4] * (SIZE + 1))
refuses(ValueError, "counts has a negative entry", pyannulus.reduce_scatterv, grid, [-4] * SIZE)
refuses(ValueError, "array has 4 rows (shape (4, 6)), counts says 5", pyannulus.gatherv, grid, [5] * SIZE, RANK)
refuses(TypeError, "array or counts is None on the root", pyannulus.scatterv, grid, None, RANK)
refuses(TypeError, "counts is None on the root", pyannulus.gatherv, grid, None, RANK)
for kind, words, given in ((TypeError, "has the entry 4.5, which is no integer", [4.5] * SIZE),
                           (TypeError, "has the entry '4', which is no integer", ["4"] * SIZE),
                           (TypeError, "is of type set; it must be a sequence of integers", set(range(SIZE))),
                           (TypeError, "is of type frozenset", frozenset(range(SIZE))),
                           (TypeError, "is of type dict", {each: 4 for each in range(SIZE)}),
                           (TypeError, "is of type int; it must be a sequence of integers", 4),
                           (ValueError, "has a negative entry", np.full(SIZE, -4)),
                           (ValueError, f"has {SIZE - 1} entries; there are {SIZE} ranks", (4,) * (SIZE - 1))):
    refuses(kind, f"counts {words}", pyannulus.allgatherv, grid, given)
    refuses(kind, f"counts {words}", pyannulus.reduce_scatterv, grid, given)
    refuses(kind, f"counts {words}", pyannulus.gatherv, grid, given, RANK)
    refuses(kind, f"counts {words}", pyannulus.scatterv, grid, given, RANK)
    refuses(kind, f"sendcounts {words}", pyannulus.alltoallv, grid, given, [4] * SIZE)
    refuses(kind, f"recvcounts {words}", pyannulus.alltoallv, grid, [4] * SIZE, given)
refuses(ValueError, f"array has 4 rows (shape (4, 6)), counts says {3 * SIZE}", pyannulus.scatterv, grid, [3] * SIZE, RANK)
refuses(ValueError, f"array has 4 rows (shape (4, 6)), sendcounts says {3 * SIZE}", pyannulus.alltoallv, grid, [3] * SIZE, [3] * SIZE)
refuses(TypeError, "None on the root" if RANK == 0 else "out is None on a rank", pyannulus.scatter, None)
error = refuses(pyannulus.InvalidArgument, "root is 99", pyannulus.broadcast, grid, 99)
assert (error.status, error.rank) == (pyannulus.Status.INVALID_ARGUMENT, RANK) and error.advice
shifted = np.ones(5)
refuses(pyannulus.InvalidArgument, "overlap", pyannulus.allreduce, shifted[:4], out=shifted[1:])
unaligned = np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float64)
refuses(ValueError, "array is not aligned to its element's 8 bytes", pyannulus.allreduce, unaligned)
refuses(ValueError, "array 1 is not C-contiguous", pyannulus.allreduce_group, [grid, grid.T])
refuses(ValueError, "out is read-only", pyannulus.allreduce_group, [frozen], in_place=True)
refuses(pyannulus.InvalidArgument, "priorities", pyannulus.with_options(priority=1).barrier)
error = refuses(pyannulus.InvalidArgument, "timeout_ms is -1", pyannulus.with_options(timeout_ms=-1, label="late").barrier)
refuses(TypeError, "done is a str, which cannot be called", pyannulus.with_options, done="later")
error = refuses(pyannulus.InvalidArgument, "root is 99", pyannulus.with_options(label="weights").broadcast, grid, 99)
assert (error.label, error.collective, error.scope) == ("weights", "broadcast", pyannulus.Scope.CALL), error.args
assert (error.cause, error.cause_code) == (pyannulus.Cause.NONE, 0) and str(error).startswith('invalid argument ("weights"): ')
assert pyannulus.verdict() is None
# A group is queued whole or not at all: where only this rank's first call stayed, the next collective would not match.
ended = []
try:
    with pyannulus.with_options(done=ended.append).group() as group:
        kept = group.allreduce_async(np.ones(2))
        refuses(RuntimeError, "has not been queued", kept.wait)
        refuses(TypeError, "groups do not nest", group.group)
        refuses(TypeError, "options of what made it", group.with_options)
        group.broadcast_async(grid, 99)
    raise AssertionError("a group with a call that is refused was queued")
except pyannulus.InvalidArgument as refusal:
    assert "call 1 of the group" in str(refusal) and refusal.scope is pyannulus.Scope.CALL, refusal
refuses(RuntimeError, "has not been queued", kept.wait)
try:
    with pyannulus.group() as group:
        group.barrier_async()
        raise KeyError("the program's own")
except KeyError:
    pass
assert pyannulus.allreduce(np.ones(2)).tolist() == [SIZE, SIZE]

# -- Seen by all -------------------------------------------------------------------------------------------------------

checked = pyannulus.with_options(agree_first=True, label="checked")
for _ in range(2):
    error = refuses(pyannulus.Mismatch, "rank 1 called allreduce", checked.allreduce, np.ones(10 + (RANK == 1)))
    assert (error.scope, error.rank, error.label) == (pyannulus.Scope.CALL, 1, "checked"), error.args
    with checked.group() as group:
        totals = [group.allreduce_async(np.ones(3)) for _ in range(2 + (RANK == 1))]
    error = refuses(pyannulus.Mismatch, "rank 1 submitted a group of 3", totals[0].wait)
    assert error.scope is pyannulus.Scope.CALL and pyannulus.verdict() is None
    if RANK == 1:
        refuses(pyannulus.InvalidArgument, "root is 99", checked.broadcast, grid, 99)
    else:
        error = refuses(pyannulus.Mismatch, "rank 1 refused broadcast", checked.broadcast, grid, 0)
        assert error.rank == 1 and "invalid argument" in str(error), error.args
    assert checked.allreduce(np.ones(2)).tolist() == [SIZE, SIZE]

with pyannulus.world().dup() as mismatched:
    error = refuses(pyannulus.Mismatch, "called allreduce", mismatched.allreduce, np.ones(10 + (RANK == 1)))
    assert error.status is pyannulus.Status.MISMATCH and error.collective == "allreduce" and error.sequence == 1
    assert error.rank == 1 and isinstance(error, pyannulus.Error), error.rank
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is pyannulus.Mismatch and copy.message == error.message and str(copy) == str(error)
    assert error.scope is pyannulus.Scope.COMMUNICATOR
    again = refuses(pyannulus.Mismatch, "called allreduce", mismatched.with_options(label="after it").barrier)
    assert (again.message, again.label) == (error.message, "after it")  # It refuses further work.
    verdict = mismatched.verdict()
    assert type(verdict) is pyannulus.Mismatch and (verdict.message, verdict.label) == (error.message, ""), verdict
    assert mismatched.counters()["collectives"] == 0

with pyannulus.world().dup() as aborted:
    pending = aborted.allreduce_async(np.ones(4)) if RANK else None
    pyannulus.barrier()
    if RANK == 0:
        aborted.abort("enough of it")
        assert "enough of it" in aborted.verdict().message
    error = refuses(pyannulus.Aborted, "enough of it", pending.wait if pending else aborted.barrier)
    assert error.rank == 0

closed = pyannulus.world().dup()
pending = closed.barrier_async() if RANK == 0 else None
closed.close()
refuses(pyannulus.Aborted, "is closed", closed.barrier)
refuses(pyannulus.Aborted, "is closed", closed.verdict)
if pending:
    refuses(pyannulus.Aborted, "closed", pending.wait)

# A second job of the same ranks beside the first, which keeps them together until it has failed. Rank 0's socket, bound
# but not listening, keeps the port from others until the job has met there.
with socket.socket() as reserved:
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = pyannulus.broadcast(np.array([reserved.getsockname()[1]]))[0]
    short = pyannulus.Communicator(rendezvous=f"127.0.0.1:{port}", timeout_ms=300, transport="tcp", checksum=True)
if RANK == 0:
    error = refuses(pyannulus.Timeout, "not entered barrier #1", short.barrier)
    assert error.rank > 0 and error.collective == "barrier", error.rank
pyannulus.barrier()


def two_barriers():
    short.barrier()  # May end well: rank 0 has entered it, and the verdict may still be on its way.
    short.barrier()


if RANK != 0:
    refuses(pyannulus.Timeout, "not entered barrier #1", two_barriers)

# A call's own deadline is shorter than the communicator's, and its label is in the error.
with pyannulus.world().dup() as hasty:
    if RANK == 0:
        error = refuses(pyannulus.Timeout, "not entered barrier #1", hasty.with_options(timeout_ms=300, label="step 7").barrier)
        assert error.label == "step 7" and error.scope is pyannulus.Scope.COMMUNICATOR and error.sequence == 1, error.args
    pyannulus.barrier()
print("passed")
