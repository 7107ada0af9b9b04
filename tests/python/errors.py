"""Wrong calls: those that this rank can see are refused at once, without harm; the others fail on every rank alike."""

import pickle
import socket

import numpy as np

import annulus


def refuses(kind, words, function, *args, **settings):
    try:
        function(*args, **settings)
    except kind as error:
        assert words in str(error), (words, str(error))
        return error
    raise AssertionError(f"{function.__name__} took {args} {settings}; expected {kind.__name__}: {words}")


refuses(RuntimeError, "call annulus.init() first", annulus.rank)
refuses(TypeError, "unknown settings: colour; there are ", annulus.init, colour=1)
refuses(annulus.InvalidArgument, 'rank is "one"; allowed:', annulus.init, rank="one")
refuses(annulus.InvalidArgument, 'transport is "3"', annulus.init, transport=3)
refuses(TypeError, "rank takes a str or an int, not 1.5", annulus.init, rank=1.5)
error = refuses(annulus.InvalidArgument, "transport", annulus.init, transport="pigeon")
assert error.status is annulus.Status.INVALID_ARGUMENT and isinstance(error, ValueError)
annulus.init(timeout_ms=20000)
refuses(RuntimeError, "was called before", annulus.init)
RANK, SIZE = annulus.rank(), annulus.size()

# -- Seen by this rank alone; the communicator stays usable -------------------------------------------------------------

grid = np.ones((4, 6))
frozen = np.ones(3)
frozen.flags.writeable = False
refuses(TypeError, "array is a list, not a numpy array", annulus.allreduce, [1, 2])
refuses(TypeError, "dtype('complex128'); Annulus knows int8,", annulus.allreduce, np.ones(2, complex))
refuses(TypeError, "in this machine's byte order", annulus.allreduce, np.ones(2, ">f4"))
refuses(TypeError, "Annulus knows int8,", annulus.send, np.zeros(3, []), (RANK + 1) % SIZE)
refuses(ValueError, "array is not C-contiguous (shape (6, 4)", annulus.allreduce, grid.T)
refuses(ValueError, "out is not C-contiguous", annulus.allreduce, np.ones((4, 3)), out=grid[:, ::2])
refuses(ValueError, "unknown op 'mean'; there are sum, prod, min, max, avg", annulus.allreduce, grid, "mean")
refuses(ValueError, "out is read-only", annulus.allreduce, np.ones(3), out=frozen)
refuses(ValueError, "array is read-only", annulus.broadcast, frozen, (RANK + 1) % SIZE)
refuses(ValueError, "array is read-only", annulus.recv, frozen, (RANK + 1) % SIZE)
refuses(TypeError, "out has dtype float32, array has float64", annulus.allreduce, grid, out=grid.astype(np.float32))
refuses(ValueError, "out has 3 elements, the result 24", annulus.allreduce, grid, out=np.ones(3))
refuses(ValueError, f"which {SIZE} ranks cannot share", annulus.reduce_scatter, np.ones(SIZE + 1))
refuses(ValueError, f"which {SIZE} ranks cannot share", annulus.reduce_scatter, np.ones((SIZE + 1, SIZE)), out=np.ones(SIZE + 1))
refuses(ValueError, f"which {SIZE} ranks cannot share", annulus.alltoall, np.ones(SIZE - 1))
refuses(ValueError, f"counts has {SIZE + 1} entries; there are {SIZE} ranks", annulus.allgatherv, grid, [4] * (SIZE + 1))
refuses(ValueError, "counts has a negative entry", annulus.reduce_scatterv, grid, [-4] * SIZE)
refuses(ValueError, "array has 4 rows (shape (4, 6)), counts says 5", annulus.gatherv, grid, [5] * SIZE, RANK)
refuses(TypeError, "array or counts is None on the root", annulus.scatterv, grid, None, RANK)
refuses(TypeError, "counts is None on the root", annulus.gatherv, grid, None, RANK)
refuses(TypeError, "integer", annulus.allgatherv, grid, [4.5] * SIZE)
refuses(TypeError, "None on the root" if RANK == 0 else "out is None on a rank", annulus.scatter, None)
error = refuses(annulus.InvalidArgument, "root is 99", annulus.broadcast, grid, 99)
assert (error.status, error.rank) == (annulus.Status.INVALID_ARGUMENT, RANK) and error.advice
shifted = np.ones(5)
refuses(annulus.InvalidArgument, "overlap", annulus.allreduce, shifted[:4], out=shifted[1:])
unaligned = np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float64)
refuses(ValueError, "array is not aligned to its element's 8 bytes", annulus.allreduce, unaligned)
refuses(ValueError, "array 1 is not C-contiguous", annulus.allreduce_group, [grid, grid.T])
refuses(ValueError, "out is read-only", annulus.allreduce_group, [frozen], in_place=True)
refuses(annulus.InvalidArgument, "priorities", annulus.with_options(priority=1).barrier)
error = refuses(annulus.InvalidArgument, "timeout_ms is -1", annulus.with_options(timeout_ms=-1, label="late").barrier)
refuses(TypeError, "done is a str, which cannot be called", annulus.with_options, done="later")
error = refuses(annulus.InvalidArgument, "root is 99", annulus.with_options(label="weights").broadcast, grid, 99)
assert (error.label, error.collective, error.scope) == ("weights", "broadcast", annulus.Scope.CALL), error.args
assert (error.cause, error.cause_code) == (annulus.Cause.NONE, 0) and str(error).startswith('invalid argument ("weights"): ')
assert annulus.verdict() is None
# A group is queued whole or not at all: where only this rank's first call stayed, the next collective would not match.
ended = []
try:
    with annulus.with_options(done=ended.append).group() as group:
        kept = group.allreduce_async(np.ones(2))
        refuses(RuntimeError, "has not been queued", kept.wait)
        refuses(TypeError, "groups do not nest", group.group)
        refuses(TypeError, "options of what made it", group.with_options)
        group.broadcast_async(grid, 99)
    raise AssertionError("a group with a call that is refused was queued")
except annulus.InvalidArgument as refusal:
    assert "call 1 of the group" in str(refusal) and refusal.scope is annulus.Scope.CALL, refusal
refuses(RuntimeError, "has not been queued", kept.wait)
try:
    with annulus.group() as group:
        group.barrier_async()
        raise KeyError("the program's own")
except KeyError:
    pass
assert annulus.allreduce(np.ones(2)).tolist() == [SIZE, SIZE]

# -- Seen by all -------------------------------------------------------------------------------------------------------

checked = annulus.with_options(agree_first=True, label="checked")
for _ in range(2):
    error = refuses(annulus.Mismatch, "rank 1 called allreduce", checked.allreduce, np.ones(10 + (RANK == 1)))
    assert (error.scope, error.rank, error.label) == (annulus.Scope.CALL, 1, "checked"), error.args
    with checked.group() as group:
        totals = [group.allreduce_async(np.ones(3)) for _ in range(2 + (RANK == 1))]
    error = refuses(annulus.Mismatch, "rank 1 submitted a group of 3", totals[0].wait)
    assert error.scope is annulus.Scope.CALL and annulus.verdict() is None
    if RANK == 1:
        refuses(annulus.InvalidArgument, "root is 99", checked.broadcast, grid, 99)
    else:
        error = refuses(annulus.Mismatch, "rank 1 refused broadcast", checked.broadcast, grid, 0)
        assert error.rank == 1 and "invalid argument" in str(error), error.args
    assert checked.allreduce(np.ones(2)).tolist() == [SIZE, SIZE]

with annulus.world().dup() as mismatched:
    error = refuses(annulus.Mismatch, "called allreduce", mismatched.allreduce, np.ones(10 + (RANK == 1)))
    assert error.status is annulus.Status.MISMATCH and error.collective == "allreduce" and error.sequence == 1
    assert error.rank == 1 and isinstance(error, annulus.Error), error.rank
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is annulus.Mismatch and copy.message == error.message and str(copy) == str(error)
    assert error.scope is annulus.Scope.COMMUNICATOR
    again = refuses(annulus.Mismatch, "called allreduce", mismatched.with_options(label="after it").barrier)
    assert (again.message, again.label) == (error.message, "after it")  # It refuses further work.
    verdict = mismatched.verdict()
    assert type(verdict) is annulus.Mismatch and (verdict.message, verdict.label) == (error.message, ""), verdict
    assert mismatched.counters()["collectives"] == 0

with annulus.world().dup() as aborted:
    pending = aborted.allreduce_async(np.ones(4)) if RANK else None
    annulus.barrier()
    if RANK == 0:
        aborted.abort("enough of it")
        assert "enough of it" in aborted.verdict().message
    error = refuses(annulus.Aborted, "enough of it", pending.wait if pending else aborted.barrier)
    assert error.rank == 0

closed = annulus.world().dup()
pending = closed.barrier_async() if RANK == 0 else None
closed.close()
refuses(annulus.Aborted, "is closed", closed.barrier)
refuses(annulus.Aborted, "is closed", closed.verdict)
if pending:
    refuses(annulus.Aborted, "closed", pending.wait)

# A second job of the same ranks beside the first, which keeps them together until it has failed. Rank 0's socket, bound
# but not listening, keeps the port from others until the job has met there.
with socket.socket() as reserved:
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = annulus.broadcast(np.array([reserved.getsockname()[1]]))[0]
    short = annulus.Communicator(rendezvous=f"127.0.0.1:{port}", timeout_ms=300, transport="tcp", checksum=True)
if RANK == 0:
    error = refuses(annulus.Timeout, "not entered barrier #1", short.barrier)
    assert error.rank > 0 and error.collective == "barrier", error.rank
annulus.barrier()


def two_barriers():
    short.barrier()  # May end well: rank 0 has entered it, and the verdict may still be on its way.
    short.barrier()


if RANK != 0:
    refuses(annulus.Timeout, "not entered barrier #1", two_barriers)

# A call's own deadline is shorter than the communicator's, and its label is in the error.
with annulus.world().dup() as hasty:
    if RANK == 0:
        error = refuses(annulus.Timeout, "not entered barrier #1", hasty.with_options(timeout_ms=300, label="step 7").barrier)
        assert error.label == "step 7" and error.scope is annulus.Scope.COMMUNICATOR and error.sequence == 1, error.args
    annulus.barrier()
print("passed")
