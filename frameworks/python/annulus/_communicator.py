"""Communicators: a group of ranks and the collectives that they call together."""

import functools
import os
import threading
import weakref
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Type, TypeVar, Union

from annulus import _arrays, _core
from annulus._arrays import Array
from annulus._operation import Operation
from annulus._request import Request

T = TypeVar("T")

# "sum" and so on, or what premul_sum or reduction gave.
Op = Union[str, Operation]

_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


def _interruptible(function: Callable[..., T], *args: Any) -> T:
    """Calls what may block for long in a thread of its own, so that Ctrl-C ends the wait for it."""
    future: "Future[T]" = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="annulus set-up", daemon=True).start()
    return future.result()


class Communicator:
    """A group of ranks. Every rank must call the same collectives in the same order. `settings` are those of
    docs/tuning.md, by name; what is not given comes from the environment."""

    def __init__(self, **settings: Union[int, str]) -> None:
        unknown = sorted(settings.keys() - set(_core.SETTINGS))
        if unknown:
            raise TypeError(f"unknown settings: {', '.join(unknown)}; there are {', '.join(_core.SETTINGS)}")
        self._adopt(_interruptible(_core.create, settings))

    def _adopt(self, core: _core.Handle) -> None:
        self._core = core
        _open.add(self)

    @classmethod
    def _of(cls, core: _core.Handle) -> "Communicator":
        made = cls.__new__(cls)
        made._adopt(core)
        return made

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def size(self) -> int:
        return self._core.size

    @property
    def local_rank(self) -> int:
        """The rank among those of the same host."""
        return self._core.local_rank

    @property
    def local_size(self) -> int:
        return self._core.local_size

    @property
    def closed(self) -> bool:
        return self._core.closed

    def __repr__(self) -> str:
        return f"<annulus.Communicator rank {self.rank} of {self.size}{', closed' if self.closed else ''}>"

    def split(self, colour: int, key: int = 0) -> "Optional[Communicator]":
        """A new communicator of the ranks that gave the same colour, in the order of (key, rank); None for a negative
        colour. Every rank must call it."""
        core = _interruptible(self._core.split, colour, key)
        return None if core is None else Communicator._of(core)

    def dup(self) -> "Communicator":
        """A new communicator of the same ranks, with a queue of its own: for another thread, for example."""
        return Communicator._of(_interruptible(self._core.dup))

    def memory(self) -> Dict[str, int]:
        """What the communicator holds on this rank, in bytes by purpose, as annulus_memory_t in annulus.h tells."""
        return self._core.memory()

    def set_priority(self, priority: int) -> None:
        """Of the collectives that are started from now on, 0 at first: in the queue a higher one overtakes. All ranks must
        set the same. Calls with another priority than 0 are refused without the setting priorities=1."""
        self._core.set_priority(priority)

    def premul_sum(self, factor: float) -> Operation:
        """A sum to which this rank contributes its elements times `factor`, which may differ from rank to rank."""
        return Operation(self._core, self._core.create_premul_sum(factor))

    def reduction(self, function: Callable[[Array, Array, Array], Optional[Array]]) -> Operation:
        """A reduction by function(left, right, out), which writes `out` or returns the result: all are one-dimensional and
        equally long, `left` and `right` read-only, `out` perhaps one of them, and none to be kept. It must be associative,
        treat each element for itself, give the same bits on every rank, and leave the communicator alone. It runs in
        another thread. What it raises comes out of wait, and aborts the communicator."""
        return Operation(self._core, self._core.create_reduction(functools.partial(_arrays.combine, function)))

    def _number(self, op: Op) -> int:
        return op.number_for(self._core) if isinstance(op, Operation) else _arrays.op_number(op)

    def counters(self) -> Dict[str, Any]:
        """What it has done up to now: the fields of annulus_counters_t, and by transport the bytes (docs/observing.md)."""
        return self._core.counters()

    def abort(self, reason: str = "") -> None:
        """Fails all pending and later work on every rank with annulus.Aborted, whose message has the reason."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leaves. Work that is pending fails. Happens by itself at the end of a with block or of the program."""
        self._core.close()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    # -- Collectives: asynchronous. Those with an output return it from Request.wait. --------------------------------

    def allreduce_async(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        out = _arrays.output(array, out, array.shape)
        return Request(self._core.allreduce(array, out, array.size, number, self._number(op)), out, op)

    def allreduce_group_async(self, arrays: Sequence[Array], op: Op = "sum",
                              in_place: bool = False) -> "Request[List[Array]]":
        number = self._number(op)
        outs, members = [], []
        for index, array in enumerate(arrays):
            element = _arrays.check(array, f"array {index}")
            outs.append(_arrays.output(array, array if in_place else None, array.shape))
            members.append((array, outs[-1], array.size, element))
        return Request(self._core.allreduce_group(members, number), outs, op)

    def reduce_async(self, array: Array, root: int = 0, op: Op = "sum",
                     out: Optional[Array] = None) -> "Request[Optional[Array]]":
        number = _arrays.check(array, "array")
        out = _arrays.output(array, out, array.shape) if self.rank == root else None
        return Request(self._core.reduce(array, out, array.size, number, self._number(op), root), out, op)

    def broadcast_async(self, array: Array, root: int = 0) -> "Request[Array]":
        number = _arrays.check(array, "array")
        if self.rank == root:
            return Request(self._core.broadcast(array, None, array.size, number, root), array)
        _arrays.check_writable(array, "array")
        return Request(self._core.broadcast(None, array, array.size, number, root), array)

    def allgather_async(self, array: Array, out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        count, row = _arrays.rows(array)
        out = _arrays.output(array, out, (self.size * count, *row))
        return Request(self._core.allgather(array, out, array.size, number), out)

    def reduce_scatter_async(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        out = _arrays.output(array, out, _arrays.part(array, self.size, "array"))
        return Request(self._core.reduce_scatter(array, out, out.size, number, self._number(op)), out, op)

    def gather_async(self, array: Array, root: int = 0, out: Optional[Array] = None) -> "Request[Optional[Array]]":
        number = _arrays.check(array, "array")
        count, row = _arrays.rows(array)
        out = _arrays.output(array, out, (self.size * count, *row)) if self.rank == root else None
        return Request(self._core.gather(array, out, array.size, number, root), out)

    def scatter_async(self, array: Optional[Array], root: int = 0, out: Optional[Array] = None) -> "Request[Array]":
        if self.rank == root:
            if array is None:
                raise TypeError("array is None on the root, which has what is scattered")
            number = _arrays.check(array, "array")
            out = _arrays.output(array, out, _arrays.part(array, self.size, "array"))
            return Request(self._core.scatter(array, out, out.size, number, root), out)
        if out is None:
            raise TypeError("out is None on a rank that is not the root: only it says what is expected")
        number = _arrays.check(out, "out")
        _arrays.check_writable(out, "out")
        return Request(self._core.scatter(None, out, out.size, number, root), out)

    def alltoall_async(self, array: Array, out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        _arrays.part(array, self.size, "array")
        out = _arrays.output(array, out, array.shape)
        return Request(self._core.alltoall(array, out, array.size // self.size, number), out)

    def allgatherv_async(self, array: Array, counts: Sequence[int], out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        row = _arrays.rows(array)[1]
        elements = _arrays.parts(counts, self.size, row, "counts")
        _arrays.check_rows(array, counts[self.rank], "array", "counts")
        out = _arrays.output(array, out, (sum(counts), *row))
        return Request(self._core.allgatherv(array, out, elements, number), out)

    def reduce_scatterv_async(self, array: Array, counts: Sequence[int], op: Op = "sum",
                              out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        row = _arrays.rows(array)[1]
        elements = _arrays.parts(counts, self.size, row, "counts")
        _arrays.check_rows(array, sum(counts), "array", "counts")
        out = _arrays.output(array, out, (counts[self.rank], *row))
        return Request(self._core.reduce_scatterv(array, out, elements, number, self._number(op)), out, op)

    def gatherv_async(self, array: Array, counts: Optional[Sequence[int]] = None, root: int = 0,
                      out: Optional[Array] = None) -> "Request[Optional[Array]]":
        number = _arrays.check(array, "array")
        if self.rank != root:
            return Request(self._core.gatherv(array, None, array.size, [], number, root), None)
        if counts is None:
            raise TypeError("counts is None on the root, which must know how much comes from whom")
        row = _arrays.rows(array)[1]
        elements = _arrays.parts(counts, self.size, row, "counts")
        _arrays.check_rows(array, counts[self.rank], "array", "counts")
        out = _arrays.output(array, out, (sum(counts), *row))
        return Request(self._core.gatherv(array, out, array.size, elements, number, root), out)

    def scatterv_async(self, array: Optional[Array], counts: Optional[Sequence[int]] = None, root: int = 0,
                       out: Optional[Array] = None) -> "Request[Array]":
        if self.rank != root:
            if out is None:
                raise TypeError("out is None on a rank that is not the root: only it says what is expected")
            number = _arrays.check(out, "out")
            _arrays.check_writable(out, "out")
            return Request(self._core.scatterv(None, out, out.size, [], number, root), out)
        if array is None or counts is None:
            raise TypeError("array or counts is None on the root, which has what is scattered")
        number = _arrays.check(array, "array")
        row = _arrays.rows(array)[1]
        elements = _arrays.parts(counts, self.size, row, "counts")
        _arrays.check_rows(array, sum(counts), "array", "counts")
        out = _arrays.output(array, out, (counts[self.rank], *row))
        return Request(self._core.scatterv(array, out, out.size, elements, number, root), out)

    def alltoallv_async(self, array: Array, sendcounts: Sequence[int], recvcounts: Sequence[int],
                        out: Optional[Array] = None) -> "Request[Array]":
        number = _arrays.check(array, "array")
        row = _arrays.rows(array)[1]
        outgoing = _arrays.parts(sendcounts, self.size, row, "sendcounts")
        incoming = _arrays.parts(recvcounts, self.size, row, "recvcounts")
        _arrays.check_rows(array, sum(sendcounts), "array", "sendcounts")
        out = _arrays.output(array, out, (sum(recvcounts), *row))
        return Request(self._core.alltoallv(array, out, outgoing, incoming, number), out)

    def send_async(self, array: Array, peer: int) -> "Request[None]":
        number = _arrays.check(array, "array")
        return Request(self._core.send(array, array.size, number, peer), None)

    def recv_async(self, array: Array, peer: int) -> "Request[Array]":
        number = _arrays.check(array, "array")
        _arrays.check_writable(array, "array")
        return Request(self._core.recv(array, array.size, number, peer), array)

    def barrier_async(self) -> "Request[None]":
        return Request(self._core.barrier(), None)

    # -- Collectives: blocking ---------------------------------------------------------------------------------------

    def allreduce(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> Array:
        """The reduction of all ranks' arrays, element by element. In place: out=array."""
        return self.allreduce_async(array, op, out).wait()

    def allreduce_group(self, arrays: Sequence[Array], op: Op = "sum", in_place: bool = False) -> List[Array]:
        """allreduce of each array, with the same bits. Those of one type travel as one, without being copied together: many
        small ones cost little more than a large one."""
        return self.allreduce_group_async(arrays, op, in_place).wait()

    def reduce(self, array: Array, root: int = 0, op: Op = "sum", out: Optional[Array] = None) -> Optional[Array]:
        """allreduce whose result only the root gets; the others get None, and their `out` is not used."""
        return self.reduce_async(array, root, op, out).wait()

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Fills every rank's array with the root's, and returns it."""
        return self.broadcast_async(array, root).wait()

    def allgather(self, array: Array, out: Optional[Array] = None) -> Array:
        """All ranks' arrays, joined along the first axis in the order of the ranks. All have the same shape.
        In place: array is the rank's own part of out."""
        return self.allgather_async(array, out).wait()

    def reduce_scatter(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> Array:
        """This rank's part of the reduction, which is cut along its first axis into as many parts as there are ranks.
        In place: out is the rank's own part of array."""
        return self.reduce_scatter_async(array, op, out).wait()

    def gather(self, array: Array, root: int = 0, out: Optional[Array] = None) -> Optional[Array]:
        """allgather whose result only the root gets; the others get None, and their `out` is not used."""
        return self.gather_async(array, root, out).wait()

    def scatter(self, array: Optional[Array], root: int = 0, out: Optional[Array] = None) -> Array:
        """This rank's part of the root's array, which is cut along its first axis. Other ranks give None for it, and an
        `out` of the part's type and size."""
        return self.scatter_async(array, root, out).wait()

    def alltoall(self, array: Array, out: Optional[Array] = None) -> Array:
        """Part r of the array, cut along its first axis, goes to rank r; part s of the result came from rank s."""
        return self.alltoall_async(array, out).wait()

    def allgatherv(self, array: Array, counts: Sequence[int], out: Optional[Array] = None) -> Array:
        """allgather of arrays that differ in length: counts[r] is the length of rank r's first axis, on all ranks."""
        return self.allgatherv_async(array, counts, out).wait()

    def reduce_scatterv(self, array: Array, counts: Sequence[int], op: Op = "sum", out: Optional[Array] = None) -> Array:
        """reduce_scatter into parts of counts[r] rows for rank r, on all ranks alike."""
        return self.reduce_scatterv_async(array, counts, op, out).wait()

    def gatherv(self, array: Array, counts: Optional[Sequence[int]] = None, root: int = 0,
                out: Optional[Array] = None) -> Optional[Array]:
        """allgatherv whose result only the root gets, which alone needs counts."""
        return self.gatherv_async(array, counts, root, out).wait()

    def scatterv(self, array: Optional[Array], counts: Optional[Sequence[int]] = None, root: int = 0,
                 out: Optional[Array] = None) -> Array:
        """scatter of counts[r] rows to rank r. Other ranks than the root give None for array and counts, and an `out`."""
        return self.scatterv_async(array, counts, root, out).wait()

    def alltoallv(self, array: Array, sendcounts: Sequence[int], recvcounts: Sequence[int],
                  out: Optional[Array] = None) -> Array:
        """alltoall of parts that differ in length: sendcounts[r] rows go to rank r, recvcounts[r] come from it."""
        return self.alltoallv_async(array, sendcounts, recvcounts, out).wait()

    def send(self, array: Array, peer: int) -> None:
        """Sends the array to rank `peer`, whose n-th recv from here gets the n-th one sent. A large one waits for it."""
        self.send_async(array, peer).wait()

    def recv(self, array: Array, peer: int) -> Array:
        """Fills the array with what rank `peer` sends, and returns it."""
        return self.recv_async(array, peer).wait()

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self.barrier_async().wait()


def close_all() -> None:
    for communicator in list(_open):
        communicator.close()


def _forget_in_child() -> None:
    for communicator in list(_open):
        communicator._core.abandon()


os.register_at_fork(after_in_child=_forget_in_child)
