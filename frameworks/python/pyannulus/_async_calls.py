"""The asynchronous forms of the collectives and messages."""

from typing import Any, Callable, List, Optional, Sequence, TypeVar, Union

from pyannulus import _arrays, _core
from pyannulus._arrays import Array
from pyannulus._core import Received
from pyannulus._operation import Operation
from pyannulus._request import Queued, Request

T = TypeVar("T")

# As globals they are found faster.
ALLREDUCE = _core.ALLREDUCE
ALLGATHER = _core.ALLGATHER
REDUCE_SCATTER = _core.REDUCE_SCATTER
REDUCE = _core.REDUCE
GATHER = _core.GATHER
SCATTER = _core.SCATTER
ALLTOALL = _core.ALLTOALL
ALLGATHERV = _core.ALLGATHERV
REDUCE_SCATTERV = _core.REDUCE_SCATTERV
GATHERV = _core.GATHERV
SCATTERV = _core.SCATTERV
ALLTOALLV = _core.ALLTOALLV
BROADCAST = _core.BROADCAST
BARRIER = _core.BARRIER
SEND = _core.SEND
RECV = _core.RECV

_ANY = -1  # The library's number for any rank and for any tag.

# "sum" and so on, or what premul_sum or reduction gave.
Op = Union[str, Operation]


def _index(name: str, given: int, allowed: str) -> int:
    """The number of a rank or a tag. Negative ones would mean any of them to the library."""
    if given < 0:
        raise ValueError(f"{name} is {given}; allowed: {allowed}")
    return given


def not_plain(*call: Any) -> Any:
    """Stands for Runner's functions where nothing is to be made in one step."""
    del call
    return NotImplemented


class AsyncCalls:
    """The asynchronous forms. Those of plain arrays are queued in one step (`_begun`), unless all calls are only collected."""

    def _collect(self, core: _core.Handle, calls: _core.Calls, stream: Optional[int] = None) -> None:
        """The set-up of calls of which none is made in one step."""
        self._core = core
        self._calls = calls
        self._use = _arrays.Use(core, stream)
        self._begun: Callable[..., Any] = not_plain
        self._begun_exchange: Callable[..., Any] = not_plain
        self._begun_group: Callable[..., Any] = not_plain

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def size(self) -> int:
        return self._core.size

    def _number(self, op: Op) -> int:
        return op.number_for(self._core) if isinstance(op, Operation) else _arrays.op_number(op)

    def _start(self, call: _core.Call, result: T, op: Op = "") -> "Request[T]":
        return self._start_all([call], result, op)

    def _start_all(self, calls: List[_core.Call], result: T, op: Op) -> "Request[T]":
        return Queued(self._core.submit(calls), result, op)

    # Those with an output return it from Request.wait.

    def allreduce_async(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(ALLREDUCE, array, out, op)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        target, out = (_arrays.same_output(given, array) if out is array else
                       _arrays.output(self._use, given, number, out, given.shape))
        return self._start(self._calls.allreduce(given, target, given.size, number, self._number(op)), out, op)

    def allreduce_group_async(self, arrays: Sequence[Array], op: Op = "sum",
                              in_place: bool = False) -> "Request[List[Array]]":
        begun: "Request[List[Array]]" = self._begun_group(arrays, in_place, op)
        if begun is not NotImplemented:
            return begun
        number = self._number(op)
        outs: List[Array] = []
        calls = []
        for index, array in enumerate(arrays):
            given, element = _arrays.take(self._use, array, f"array {index}")
            target, out = (_arrays.same_output(given, array) if in_place else
                           _arrays.output(self._use, given, element, None, given.shape))
            outs.append(out)
            calls.append(self._calls.allreduce(given, target, given.size, element, number))
        return self._start_all(calls, outs, op)

    def reduce_async(self, array: Array, root: int = 0, op: Op = "sum",
                     out: Optional[Array] = None) -> "Request[Optional[Array]]":
        begun: "Request[Optional[Array]]" = self._begun(REDUCE, array, out, op, root)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        target, out = (_arrays.output(self._use, given, number, out, given.shape)
                       if self.rank == root else (None, None))
        return self._start(self._calls.reduce(given, target, given.size, number, self._number(op), root), out, op)

    def broadcast_async(self, array: Array, root: int = 0) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(BROADCAST, array, array, root)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        if self.rank == root:
            return self._start(self._calls.broadcast(given, None, given.size, number, root), array)
        _arrays.check_writable(given, "array")
        return self._start(self._calls.broadcast(None, given, given.size, number, root), array)

    def allgather_async(self, array: Array, out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(ALLGATHER, array, out, 0)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        count, row = _arrays.rows(given)
        target, out = _arrays.output(self._use, given, number, out, (self.size * count, *row))
        return self._start(self._calls.allgather(given, target, given.size, number), out)

    def reduce_scatter_async(self, array: Array, op: Op = "sum", out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(REDUCE_SCATTER, array, out, op)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        target, out = _arrays.output(self._use, given, number, out, _arrays.part(given, self.size, "array"))
        return self._start(self._calls.reduce_scatter(given, target, target.size, number, self._number(op)), out, op)

    def gather_async(self, array: Array, root: int = 0, out: Optional[Array] = None) -> "Request[Optional[Array]]":
        begun: "Request[Optional[Array]]" = self._begun(GATHER, array, out, root)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        count, row = _arrays.rows(given)
        target, out = (_arrays.output(self._use, given, number, out, (self.size * count, *row))
                       if self.rank == root else (None, None))
        return self._start(self._calls.gather(given, target, given.size, number, root), out)

    def scatter_async(self, array: Optional[Array], root: int = 0, out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(SCATTER, array, out, root)
        if begun is not NotImplemented:
            return begun
        if self.rank == root:
            if array is None:
                raise TypeError("array is None on the root, which has what is scattered")
            given, number = _arrays.take(self._use, array, "array")
            target, out = _arrays.output(self._use, given, number, out, _arrays.part(given, self.size, "array"))
            return self._start(self._calls.scatter(given, target, target.size, number, root), out)
        if out is None:
            raise TypeError("out is None on a rank that is not the root: only it says what is expected")
        target, number = _arrays.take(self._use, out, "out")
        _arrays.check_writable(target, "out")
        return self._start(self._calls.scatter(None, target, target.size, number, root), out)

    def alltoall_async(self, array: Array, out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(ALLTOALL, array, out, 0)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        _arrays.part(given, self.size, "array")
        target, out = _arrays.output(self._use, given, number, out, given.shape)
        return self._start(self._calls.alltoall(given, target, given.size // self.size, number), out)

    def allgatherv_async(self, array: Array, counts: Sequence[int], out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(ALLGATHERV, array, out, 0, 0, None, counts)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        row = _arrays.rows(given)[1]
        counts = _arrays.rows_of_parts(counts, self.size, "counts")
        elements = _arrays.elements_of(counts, row)
        _arrays.check_rows(given, counts[self.rank], "array", "counts")
        target, out = _arrays.output(self._use, given, number, out, (sum(counts), *row))
        return self._start(self._calls.allgatherv(given, target, given.size, elements, number), out)

    def reduce_scatterv_async(self, array: Array, counts: Sequence[int], op: Op = "sum",
                              out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(REDUCE_SCATTERV, array, out, op, 0, counts)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        row = _arrays.rows(given)[1]
        counts = _arrays.rows_of_parts(counts, self.size, "counts")
        elements = _arrays.elements_of(counts, row)
        _arrays.check_rows(given, sum(counts), "array", "counts")
        target, out = _arrays.output(self._use, given, number, out, (counts[self.rank], *row))
        return self._start(self._calls.reduce_scatterv(given, target, target.size, elements, number, self._number(op)), out, op)

    def gatherv_async(self, array: Array, counts: Optional[Sequence[int]] = None, root: int = 0,
                      out: Optional[Array] = None) -> "Request[Optional[Array]]":
        begun: "Request[Optional[Array]]" = self._begun(GATHERV, array, out, root, 0, None, counts)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        if self.rank != root:
            return self._start(self._calls.gatherv(given, None, given.size, [], number, root), None)
        if counts is None:
            raise TypeError("counts is None on the root, which must know how much comes from whom")
        row = _arrays.rows(given)[1]
        counts = _arrays.rows_of_parts(counts, self.size, "counts")
        elements = _arrays.elements_of(counts, row)
        _arrays.check_rows(given, counts[self.rank], "array", "counts")
        target, out = _arrays.output(self._use, given, number, out, (sum(counts), *row))
        return self._start(self._calls.gatherv(given, target, given.size, elements, number, root), out)

    def scatterv_async(self, array: Optional[Array], counts: Optional[Sequence[int]] = None, root: int = 0,
                       out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(SCATTERV, array, out, root, 0, counts)
        if begun is not NotImplemented:
            return begun
        if self.rank != root:
            if out is None:
                raise TypeError("out is None on a rank that is not the root: only it says what is expected")
            target, number = _arrays.take(self._use, out, "out")
            _arrays.check_writable(target, "out")
            return self._start(self._calls.scatterv(None, target, target.size, [], number, root), out)
        if array is None or counts is None:
            raise TypeError("array or counts is None on the root, which has what is scattered")
        given, number = _arrays.take(self._use, array, "array")
        row = _arrays.rows(given)[1]
        counts = _arrays.rows_of_parts(counts, self.size, "counts")
        elements = _arrays.elements_of(counts, row)
        _arrays.check_rows(given, sum(counts), "array", "counts")
        target, out = _arrays.output(self._use, given, number, out, (counts[self.rank], *row))
        return self._start(self._calls.scatterv(given, target, target.size, elements, number, root), out)

    def alltoallv_async(self, array: Array, sendcounts: Sequence[int], recvcounts: Sequence[int],
                        out: Optional[Array] = None) -> "Request[Array]":
        begun: "Request[Array]" = self._begun(ALLTOALLV, array, out, 0, 0, sendcounts, recvcounts)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        row = _arrays.rows(given)[1]
        sendcounts = _arrays.rows_of_parts(sendcounts, self.size, "sendcounts")
        outgoing = _arrays.elements_of(sendcounts, row)
        recvcounts = _arrays.rows_of_parts(recvcounts, self.size, "recvcounts")
        incoming = _arrays.elements_of(recvcounts, row)
        _arrays.check_rows(given, sum(sendcounts), "array", "sendcounts")
        target, out = _arrays.output(self._use, given, number, out, (sum(recvcounts), *row))
        return self._start(self._calls.alltoallv(given, target, outgoing, incoming, number), out)

    def send_async(self, array: Array, peer: int, tag: int = 0) -> "Request[None]":
        begun: "Request[None]" = self._begun(SEND, array, None, peer, tag)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        return self._start(self._calls.send(given, given.size, number, peer, tag), None)

    def recv_async(self, array: Array, peer: Optional[int] = None, tag: Optional[int] = 0,
                   received: Optional[Received] = None) -> "Request[Array]":
        if received is None:
            begun: "Request[Array]" = self._begun(RECV, None, array, peer, tag)
            if begun is not NotImplemented:
                return begun
        given, number = _arrays.take(self._use, array, "array")
        _arrays.check_writable(given, "array")
        source = _ANY if peer is None else _index("peer", peer, f"0 to {self.size - 1}")
        wanted = _ANY if tag is None else _index("tag", tag, "0 or more")
        return self._start(self._calls.recv(given, given.size, number, source, wanted, received), array)

    def sendrecv_async(self, array: Array, dest: int, into: Array, source: int, tag: int = 0) -> "Request[Array]":
        begun: "Request[Array]" = self._begun_exchange(array, dest, into, source, tag)
        if begun is not NotImplemented:
            return begun
        given, number = _arrays.take(self._use, array, "array")
        target, target_number = _arrays.take(self._use, into, "into")
        _arrays.check_writable(target, "into")
        _arrays.check_apart(given, target)
        source = _index("source", source, f"0 to {self.size - 1}")
        return self._start_all([self._calls.send(given, given.size, number, dest, tag),
                                self._calls.recv(target, target.size, target_number, source, tag, None)], into, "")

    def barrier_async(self) -> "Request[None]":
        begun: "Request[None]" = self._begun(BARRIER, None, None, 0)
        return begun if begun is not NotImplemented else self._start(self._calls.barrier(), None)
