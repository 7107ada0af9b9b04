"""Annulus for numpy: collectives over many processes, without a copy and without MPI.

    import pyannulus, numpy

    pyannulus.init()                                   # rank, size and meeting point from the launcher
    gradients = numpy.ones(1000, numpy.float32)
    pyannulus.allreduce(gradients, out=gradients)      # in place
    pyannulus.finalize()                               # at exit too

The functions of this module are those of `pyannulus.world()`, the Communicator that init() makes.
"""

import atexit
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from pyannulus import _core
from pyannulus._arrays import Array, GpuArray, empty, empty_on_gpu
from pyannulus._calls import Calls, Group, Op
from pyannulus._communicator import Communicator, close_all
from pyannulus._core import Received
from pyannulus._errors import Aborted, Cause, Error, InvalidArgument, Mismatch, PeerLost, Scope, Status, Timeout
from pyannulus._operation import Operation
from pyannulus._request import Request

__version__ = _core.version()
__all__ = [
    "Aborted", "Calls", "Cause", "Communicator", "Error", "GpuArray", "Group", "InvalidArgument", "Mismatch", "Operation",
    "PeerLost", "Received", "Request", "Scope", "Status", "Timeout", "abort", "allgather", "allgather_async", "allgatherv",
    "allgatherv_async", "allreduce", "allreduce_async", "allreduce_group", "allreduce_group_async", "alltoall",
    "alltoall_async", "alltoallv", "alltoallv_async", "barrier", "barrier_async", "broadcast", "broadcast_async",
    "counters", "device", "empty", "empty_on_gpu", "finalize", "gather", "gather_async", "gatherv", "gatherv_async", "group", "init",
    "is_initialized", "local_rank", "local_size", "memory", "premul_sum", "rank", "recv", "recv_async", "reduce",
    "reduce_async", "reduce_scatter", "reduce_scatter_async", "reduce_scatterv", "reduce_scatterv_async",
    "reduction", "scatter", "scatter_async", "scatterv", "scatterv_async", "send", "send_async", "sendrecv", "sendrecv_async",
    "size", "verdict", "with_options", "world",
]

_world: Optional[Communicator] = None


def init(**settings: Union[int, str]) -> None:
    """Joins the job; every rank must call it. `settings` are those of docs/tuning.md, by name; what is not given comes
    from the environment and the launcher."""
    global _world
    if _world is not None:
        raise RuntimeError("pyannulus.init was called before; pyannulus.finalize ends that job")
    _world = Communicator(**settings)


def finalize() -> None:
    """Leaves the job. Happens by itself at exit; may be called when there is nothing to leave."""
    global _world
    leaving = _world
    if leaving is None:
        return
    leaving.close()  # A callback, which is refused, leaves it as it is.
    if _world is leaving:
        _world = None


def is_initialized() -> bool:
    return _world is not None


def world() -> Communicator:
    """The communicator of all ranks, which init() made."""
    if _world is None:
        raise RuntimeError("call pyannulus.init() first")
    return _world


def rank() -> int:
    return world().rank


def size() -> int:
    return world().size


def local_rank() -> int:
    return world().local_rank


def local_size() -> int:
    return world().local_size


def counters() -> Dict[str, Any]:
    return world().counters()


def device() -> Dict[str, Any]:
    """How it works on GPU memory: see Communicator.device."""
    return world().device()


def memory() -> Dict[str, int]:
    return world().memory()


def verdict() -> Optional[Error]:
    return world().verdict()


def abort(reason: str = "") -> None:
    world().abort(reason)


def with_options(*, timeout_ms: int = 0, label: str = "", priority: int = 0,
                 done: Optional[Callable[[Status], object]] = None, agree_first: bool = False,
                 stream: Optional[Any] = None) -> Calls:
    return world().with_options(timeout_ms=timeout_ms, label=label, priority=priority, done=done,
                                agree_first=agree_first, stream=stream)


def group() -> Group:
    return world().group()


def allreduce(array: Array, op: Op = "sum", out: Optional[Array] = None) -> Array:
    return world().allreduce(array, op, out)


def allreduce_async(array: Array, op: Op = "sum", out: Optional[Array] = None) -> Request[Array]:
    return world().allreduce_async(array, op, out)


def allreduce_group(arrays: Sequence[Array], op: Op = "sum", in_place: bool = False) -> List[Array]:
    return world().allreduce_group(arrays, op, in_place)


def allreduce_group_async(arrays: Sequence[Array], op: Op = "sum", in_place: bool = False) -> Request[List[Array]]:
    return world().allreduce_group_async(arrays, op, in_place)


def reduce(array: Array, root: int = 0, op: Op = "sum", out: Optional[Array] = None) -> Optional[Array]:
    return world().reduce(array, root, op, out)


def reduce_async(array: Array, root: int = 0, op: Op = "sum", out: Optional[Array] = None) -> Request[Optional[Array]]:
    return world().reduce_async(array, root, op, out)


def broadcast(array: Array, root: int = 0) -> Array:
    return world().broadcast(array, root)


def broadcast_async(array: Array, root: int = 0) -> Request[Array]:
    return world().broadcast_async(array, root)


def allgather(array: Array, out: Optional[Array] = None) -> Array:
    return world().allgather(array, out)


def allgather_async(array: Array, out: Optional[Array] = None) -> Request[Array]:
    return world().allgather_async(array, out)


def reduce_scatter(array: Array, op: Op = "sum", out: Optional[Array] = None) -> Array:
    return world().reduce_scatter(array, op, out)


def reduce_scatter_async(array: Array, op: Op = "sum", out: Optional[Array] = None) -> Request[Array]:
    return world().reduce_scatter_async(array, op, out)


def gather(array: Array, root: int = 0, out: Optional[Array] = None) -> Optional[Array]:
    return world().gather(array, root, out)


def gather_async(array: Array, root: int = 0, out: Optional[Array] = None) -> Request[Optional[Array]]:
    return world().gather_async(array, root, out)


def scatter(array: Optional[Array], root: int = 0, out: Optional[Array] = None) -> Array:
    return world().scatter(array, root, out)


def scatter_async(array: Optional[Array], root: int = 0, out: Optional[Array] = None) -> Request[Array]:
    return world().scatter_async(array, root, out)


def alltoall(array: Array, out: Optional[Array] = None) -> Array:
    return world().alltoall(array, out)


def alltoall_async(array: Array, out: Optional[Array] = None) -> Request[Array]:
    return world().alltoall_async(array, out)


def allgatherv(array: Array, counts: Sequence[int], out: Optional[Array] = None) -> Array:
    return world().allgatherv(array, counts, out)


def allgatherv_async(array: Array, counts: Sequence[int], out: Optional[Array] = None) -> Request[Array]:
    return world().allgatherv_async(array, counts, out)


def reduce_scatterv(array: Array, counts: Sequence[int], op: Op = "sum", out: Optional[Array] = None) -> Array:
    return world().reduce_scatterv(array, counts, op, out)


def reduce_scatterv_async(array: Array, counts: Sequence[int], op: Op = "sum",
                          out: Optional[Array] = None) -> Request[Array]:
    return world().reduce_scatterv_async(array, counts, op, out)


def gatherv(array: Array, counts: Optional[Sequence[int]] = None, root: int = 0,
            out: Optional[Array] = None) -> Optional[Array]:
    return world().gatherv(array, counts, root, out)


def gatherv_async(array: Array, counts: Optional[Sequence[int]] = None, root: int = 0,
                  out: Optional[Array] = None) -> Request[Optional[Array]]:
    return world().gatherv_async(array, counts, root, out)


def scatterv(array: Optional[Array], counts: Optional[Sequence[int]] = None, root: int = 0,
             out: Optional[Array] = None) -> Array:
    return world().scatterv(array, counts, root, out)


def scatterv_async(array: Optional[Array], counts: Optional[Sequence[int]] = None, root: int = 0,
                   out: Optional[Array] = None) -> Request[Array]:
    return world().scatterv_async(array, counts, root, out)


def alltoallv(array: Array, sendcounts: Sequence[int], recvcounts: Sequence[int], out: Optional[Array] = None) -> Array:
    return world().alltoallv(array, sendcounts, recvcounts, out)


def alltoallv_async(array: Array, sendcounts: Sequence[int], recvcounts: Sequence[int],
                    out: Optional[Array] = None) -> Request[Array]:
    return world().alltoallv_async(array, sendcounts, recvcounts, out)


def premul_sum(factor: float) -> Operation:
    return world().premul_sum(factor)


def reduction(function: Callable[[Array, Array, Array], Optional[Array]]) -> Operation:
    return world().reduction(function)


def send(array: Array, peer: int, tag: int = 0) -> None:
    world().send(array, peer, tag)


def send_async(array: Array, peer: int, tag: int = 0) -> Request[None]:
    return world().send_async(array, peer, tag)


def recv(array: Array, peer: Optional[int] = None, tag: Optional[int] = 0, received: Optional[Received] = None) -> Array:
    return world().recv(array, peer, tag, received)


def recv_async(array: Array, peer: Optional[int] = None, tag: Optional[int] = 0,
               received: Optional[Received] = None) -> Request[Array]:
    return world().recv_async(array, peer, tag, received)


def sendrecv(array: Array, dest: int, into: Array, source: int, tag: int = 0) -> Array:
    return world().sendrecv(array, dest, into, source, tag)


def sendrecv_async(array: Array, dest: int, into: Array, source: int, tag: int = 0) -> Request[Array]:
    return world().sendrecv_async(array, dest, into, source, tag)


def barrier() -> None:
    world().barrier()


def barrier_async() -> Request[None]:
    return world().barrier_async()


# Docstrings are the methods', once.
for _name in __all__:
    if hasattr(Communicator, _name) and callable(globals()[_name]):
        globals()[_name].__doc__ = globals()[_name].__doc__ or getattr(Communicator, _name).__doc__
del _name

atexit.register(close_all)
