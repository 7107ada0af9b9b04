"""Calls: the collectives and messages of a communicator, with the options that they share."""

from types import TracebackType
from typing import Any, Callable, List, Optional, Sequence, Type, TypeVar

from pyannulus import _core, _streams
from pyannulus._arrays import Array
from pyannulus._async_calls import (ALLGATHER, ALLGATHERV, ALLREDUCE, ALLTOALL, ALLTOALLV, BARRIER, BROADCAST, GATHER, GATHERV,
                                    RECV, REDUCE, REDUCE_SCATTER, REDUCE_SCATTERV, SCATTER, SCATTERV, SEND, AsyncCalls, Op,
                                    not_plain)
from pyannulus._core import Received
from pyannulus._errors import Status
from pyannulus._operation import Operation
from pyannulus._request import Ended, Queued, Request, Started

T = TypeVar("T")


class Calls(AsyncCalls):
    """The collectives and messages of a communicator, as with_options and group give them; a Communicator has them
    too."""

    def __init__(self, core: _core.Handle, calls: _core.Calls, stream: Optional[int] = None) -> None:
        self._collect(core, calls, stream)
        # Makes the calls of blocking forms. None: calls are only collected.
        self._now: Optional[AsyncCalls] = Now() if stream is None else Enqueued()
        self._now._collect(core, calls, stream)
        # Make or queue a call in one step where its arrays are plain; others get a closer look, which explains errors.
        self._ran: Callable[..., Any] = not_plain
        self._exchanged: Callable[..., Any] = not_plain
        if stream is None:
            runner = _core.runner(core, calls, Started)
            self._ran, self._exchanged = runner.run, runner.exchange
            self._begun, self._begun_exchange, self._begun_group = runner.start, runner.start_exchange, runner.group

    def with_options(self, *, timeout_ms: int = 0, label: str = "", priority: int = 0,
                     done: Optional[Callable[[Status], object]] = None, agree_first: bool = False,
                     stream: Optional[Any] = None) -> "Calls":
        """The same calls with options. timeout_ms: their deadline; 0 is the communicator's. label: their name in errors and
        in the timeline. priority: in the queue a higher one overtakes; all ranks must give the same, and only with the
        setting priorities=1 another than 0. done: called with the status of each call once it has ended, in a thread of the
        communicator. It may use the communicator but not close it, and must not wait for what another `done` does. agree_first: ranks
        compare each collective before its data moves, and refuse one on which they differ with Mismatch; on all ranks alike,
        and not for messages. stream: the CUDA stream that orders the calls: its handle, or an object of PyTorch, CuPy, Numba or others.
        Then the blocking forms return at once, too: what the stream gets later comes after their results. While the stream is captured
        into a CUDA graph, the calls become part of that: keep their arrays as long as the graph."""
        if done is not None and not callable(done):
            raise TypeError(f"done is a {type(done).__name__}, which cannot be called")
        handle = None if stream is None else _streams.handle_of(stream)
        return Calls(self._core, _core.Calls(timeout_ms, priority, label, done, agree_first, handle), handle)

    def group(self) -> "Group":
        """A with block whose asynchronous calls are queued together at its end, all or none."""
        return Group(self)

    @property
    def _blocking(self) -> AsyncCalls:
        return self if self._now is None else self._now

    # -- Collectives: blocking ---------------------------------------------------------------------------------------

    def allreduce(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> Array:
        """The reduction of all ranks' arrays, element by element. In place: out=array."""
        ran: Array = self._ran(ALLREDUCE, array, out, op)
        return ran if ran is not NotImplemented else self._blocking.allreduce_async(array, op, out).wait()

    def allreduce_group(self, arrays: Sequence[Array], op: Op = "sum", in_place: bool = False) -> List[Array]:
        """allreduce of each array, with the same bits. Those of one type travel as one, without being copied together: many
        small ones cost little more than a large one."""
        begun: "Request[List[Array]]" = self._begun_group(arrays, in_place, op)
        if begun is NotImplemented:
            begun = self._blocking.allreduce_group_async(arrays, op, in_place)
        return begun.wait()

    def reduce(self, array: Array, root: int = 0, op: Op = "sum", out: Optional[Array] = None) -> Optional[Array]:
        """allreduce whose result only the root gets; the others get None, and their `out` is not used."""
        ran: Optional[Array] = self._ran(REDUCE, array, out, op, root)
        return ran if ran is not NotImplemented else self._blocking.reduce_async(array, root, op, out).wait()

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Fills every rank's array with the root's, and returns it."""
        ran: Array = self._ran(BROADCAST, array, array, root)
        return ran if ran is not NotImplemented else self._blocking.broadcast_async(array, root).wait()

    def allgather(self, array: Array, out: Optional[Array] = None) -> Array:
        """All ranks' arrays, joined along the first axis in the order of the ranks. All have the same shape.
        In place: array is the rank's own part of out."""
        ran: Array = self._ran(ALLGATHER, array, out, 0)
        return ran if ran is not NotImplemented else self._blocking.allgather_async(array, out).wait()

    def reduce_scatter(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> Array:
        """This rank's part of the reduction, which is cut along its first axis into as many parts as there are ranks.
        In place: out is the rank's own part of array."""
        ran: Array = self._ran(REDUCE_SCATTER, array, out, op)
        return ran if ran is not NotImplemented else self._blocking.reduce_scatter_async(array, op, out).wait()

    def gather(self, array: Array, root: int = 0, out: Optional[Array] = None) -> Optional[Array]:
        """allgather whose result only the root gets; the others get None, and their `out` is not used."""
        ran: Optional[Array] = self._ran(GATHER, array, out, root)
        return ran if ran is not NotImplemented else self._blocking.gather_async(array, root, out).wait()

    def scatter(self, array: Optional[Array], root: int = 0, out: Optional[Array] = None) -> Array:
        """This rank's part of the root's array, which is cut along its first axis. Other ranks give None for it, and an
        `out` of the part's type and size."""
        ran: Array = self._ran(SCATTER, array, out, root)
        return ran if ran is not NotImplemented else self._blocking.scatter_async(array, root, out).wait()

    def alltoall(self, array: Array, out: Optional[Array] = None) -> Array:
        """Part r of the array, cut along its first axis, goes to rank r; part s of the result came from rank s."""
        ran: Array = self._ran(ALLTOALL, array, out, 0)
        return ran if ran is not NotImplemented else self._blocking.alltoall_async(array, out).wait()

    def allgatherv(self, array: Array, counts: Sequence[int], out: Optional[Array] = None) -> Array:
        """allgather of arrays that differ in length: counts[r] is the length of rank r's first axis, on all ranks."""
        ran: Array = self._ran(ALLGATHERV, array, out, 0, 0, None, counts)
        return ran if ran is not NotImplemented else self._blocking.allgatherv_async(array, counts, out).wait()

    def reduce_scatterv(self, array: Array, counts: Sequence[int], op: Op = "sum", out: Optional[Array] = None) -> Array:
        """reduce_scatter into parts of counts[r] rows for rank r, on all ranks alike."""
        ran: Array = self._ran(REDUCE_SCATTERV, array, out, op, 0, counts)
        return ran if ran is not NotImplemented else self._blocking.reduce_scatterv_async(array, counts, op, out).wait()

    def gatherv(self, array: Array, counts: Optional[Sequence[int]] = None, root: int = 0,
                out: Optional[Array] = None) -> Optional[Array]:
        """allgatherv whose result only the root gets, which alone needs counts."""
        ran: Optional[Array] = self._ran(GATHERV, array, out, root, 0, None, counts)
        return ran if ran is not NotImplemented else self._blocking.gatherv_async(array, counts, root, out).wait()

    def scatterv(self, array: Optional[Array], counts: Optional[Sequence[int]] = None, root: int = 0,
                 out: Optional[Array] = None) -> Array:
        """scatter of counts[r] rows to rank r. Other ranks than the root give None for array and counts, and an `out`."""
        ran: Array = self._ran(SCATTERV, array, out, root, 0, counts)
        return ran if ran is not NotImplemented else self._blocking.scatterv_async(array, counts, root, out).wait()

    def alltoallv(self, array: Array, sendcounts: Sequence[int], recvcounts: Sequence[int],
                  out: Optional[Array] = None) -> Array:
        """alltoall of parts that differ in length: sendcounts[r] rows go to rank r, recvcounts[r] come from it."""
        ran: Array = self._ran(ALLTOALLV, array, out, 0, 0, sendcounts, recvcounts)
        return ran if ran is not NotImplemented else self._blocking.alltoallv_async(array, sendcounts, recvcounts, out).wait()

    def send(self, array: Array, peer: int, tag: int = 0) -> None:
        """Sends the array to rank `peer`, whose n-th recv from here with that tag gets the n-th one sent with it. A large
        one waits for that."""
        if self._ran(SEND, array, None, peer, tag) is NotImplemented:
            self._blocking.send_async(array, peer, tag).wait()

    def recv(self, array: Array, peer: Optional[int] = None, tag: Optional[int] = 0,
             received: Optional[Received] = None) -> Array:
        """Fills the array with what rank `peer` sends with that tag, and returns it. None: whichever rank, whatever the
        tag. received: is told the source, the tag and the count."""
        if received is None and self._ran(RECV, None, array, peer, tag) is not NotImplemented:
            return array
        return self._blocking.recv_async(array, peer, tag, received).wait()

    def sendrecv(self, array: Array, dest: int, into: Array, source: int, tag: int = 0) -> Array:
        """Sends the array to rank `dest` and fills `into` with what rank `source` sends, both at once and with that tag;
        returns `into`. Ranks that exchange arrays need not agree on who sends first. When either part is refused, neither
        is made."""
        ran: Array = self._exchanged(array, dest, into, source, tag)
        return ran if ran is not NotImplemented else self._blocking.sendrecv_async(array, dest, into, source, tag).wait()

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        if self._ran(BARRIER, None, None, 0) is NotImplemented:
            self._blocking.barrier_async().wait()


class Now(AsyncCalls):
    """Calls that have ended when they return: what the blocking forms use. A request that has ended costs less than one
    that is waited for."""

    def _start_all(self, calls: List[_core.Call], result: T, op: Op) -> "Request[T]":
        if len(calls) != 1 or isinstance(op, Operation):
            return super()._start_all(calls, result, op)
        self._core.run(calls[0])
        return Ended(result)


class Enqueued(AsyncCalls):
    """Calls in a stream, which are as good as done when they return: what the blocking forms use."""

    def _start_all(self, calls: List[_core.Call], result: T, op: Op) -> "Request[T]":
        self._core.submit(calls)
        return Ended(result)


class Group(Calls):
    """Asynchronous calls that are queued together when the with block ends, all or none: when one is refused, the block
    raises, and none is queued. An exception in the block queues none either. Allreduces of one type and op travel as
    one. No call may use what another one writes. Requests can be waited for after the block; all end together."""

    def __init__(self, calls: Calls) -> None:  # pylint: disable=super-init-not-called
        self._collect(calls._core, calls._calls, calls._use.stream)
        self._now = None
        self._ran = self._exchanged = not_plain
        self._members: List[_core.Call] = []
        self._requests: List["Queued[object]"] = []

    def with_options(self, *, timeout_ms: int = 0, label: str = "", priority: int = 0,
                     done: Optional[Callable[[Status], object]] = None, agree_first: bool = False,
                     stream: Optional[Any] = None) -> Calls:
        raise TypeError("a group has the options of what made it: with_options(...).group()")

    def group(self) -> "Group":
        raise TypeError("groups do not nest")

    def _start_all(self, calls: List[_core.Call], result: T, op: Op) -> "Request[T]":
        request = Queued(None, result, op)
        self._members += calls
        self._requests.append(request)  # type: ignore[arg-type]
        return request

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        members, self._members = self._members, []
        requests, self._requests = self._requests, []
        if kind is None and members:
            core = self._core.submit(members)
            for request in requests:
                request._core = core
