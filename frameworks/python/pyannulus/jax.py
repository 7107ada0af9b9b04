"""JAX's collectives on CPUs over Annulus, by the door that JAX has for MPI. docs/jax.md is the guide.

    import pyannulus.jax

    pyannulus.jax.initialize()                         # under annulus-run; else enable(), then jax.distributed.initialize(...)
    import jax                                         # psum, shard_map, jit over a mesh: all as ever
"""

import ctypes
import os
import signal
import socket
import sys
import time
from typing import Any, List, Optional

from pyannulus._communicator import Communicator

__all__ = ["enable", "initialize"]

# JAX compiles between two calls, on some ranks for longer than on others; a rank that dies is noticed at once all the same.
_TIMEOUT_MS = 30 * 60 * 1000
_CONNECT_TIMEOUT_MS = 5 * 60 * 1000
_GLANCE_MS = 300  # Ctrl-C is noticed between two looks into the store.
_LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libannulus_mpiwrapper.so")

_PLACE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int32), ctypes.c_void_p,
                          ctypes.c_size_t)
_SET = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_GET = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t,
                        ctypes.POINTER(ctypes.c_size_t), ctypes.c_int64)
_BEFORE_LEAVING = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)


class _Store(ctypes.Structure):  # annulus_store_t
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("context", ctypes.c_void_p), ("set", _SET), ("get", _GET)]


class _Meeting(ctypes.Structure):  # annulus_mpi_meeting of frameworks/mpi
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("place", _PLACE), ("store", _Store), ("timeout_ms", ctypes.c_int64),
                ("connect_timeout_ms", ctypes.c_int64), ("before_leaving", _BEFORE_LEAVING), ("leave_timeout_ms", ctypes.c_int64),
                ("taken_signal", ctypes.POINTER(ctypes.c_int32))]


_kept: List[Any] = []  # What the library has pointers to.
_taken_signal = ctypes.c_int32(0)


def _swallow(error: BaseException) -> str:
    """What an exception says that ends a callback, through which it cannot pass: MPI_Init raises the signal of a Ctrl-C again."""
    if isinstance(error, KeyboardInterrupt):
        _taken_signal.value = signal.SIGINT
    return f"{type(error).__name__}: {error}"


def _write(text: str, buffer: int, room: int) -> None:
    encoded = text.encode()[:room - 1] + b"\0"
    ctypes.memmove(buffer, encoded, len(encoded))


def _distributed() -> Any:
    """What jax.distributed.initialize has set up; its members are None before."""
    from jax._src import distributed
    return distributed.global_state


def _refuse_several_devices() -> Optional[str]:
    from jax._src import xla_bridge
    count = getattr(getattr(xla_bridge, "num_cpu_devices", None), "value", -1)
    flag = "--xla_force_host_platform_device_count="
    for word in os.environ.get("XLA_FLAGS", "").split():
        if count < 0 and word.startswith(flag):
            count = int(word[len(flag):])
    if count > 1:
        return f"this process has {count} CPU devices, but XLA does collectives by MPI for one (jax_num_cpu_devices, XLA_FLAGS)"
    return None


@_PLACE
def _place(rank, size, why, room):
    try:
        refusal = _refuse_several_devices()
        state = _distributed()
        if refusal is None and state.client is None:
            refusal = "jax.distributed.initialize was not called"
        if refusal is None:
            rank[0], size[0] = state.process_id, state.num_processes
            return 0
    except BaseException as error:  # pylint: disable=broad-except
        refusal = _swallow(error)
    _write(refusal, why, room)
    return 1


@_SET
def _set(_context, key, value, size):
    try:
        _distributed().client.key_value_set_bytes(f"annulus/{key.decode()}", ctypes.string_at(value, size), True)
        return 0
    except BaseException as error:  # pylint: disable=broad-except
        print(f"pyannulus.jax: the store of jax.distributed cannot be written: {_swallow(error)}", file=sys.stderr, flush=True)
        return 1


@_GET
def _get(_context, key, value, capacity, size, timeout_ms):
    try:
        found = _await_value(f"annulus/{key.decode()}", timeout_ms)
        size[0] = len(found)
        if len(found) <= capacity:
            ctypes.memmove(value, found, len(found))
        return 0
    except BaseException as error:  # pylint: disable=broad-except
        _swallow(error)  # Not in time, or the service is gone: the library tells them apart by the time.
        return 1


def _await_value(key: str, timeout_ms: int) -> bytes:
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        left_ms = round(1000 * (deadline - time.monotonic()))
        try:
            return _distributed().client.blocking_key_value_get_bytes(key, max(1, min(_GLANCE_MS, left_ms)))
        except Exception as error:  # pylint: disable=broad-except
            if "DEADLINE_EXCEEDED" not in str(error) or time.monotonic() >= deadline:
                raise


def _is_done(array: Any) -> bool:
    try:
        return array.is_deleted() or array.is_ready()
    except Exception:  # pylint: disable=broad-except
        return True  # Deleted in between.


def _last_of_this_thread(device: Any) -> Any:
    """An array that is ready after all that this thread has dispatched, of which nobody may have kept the results: XLA
    runs a thread's work in order, but for what is cheap, and a product of matrices is not."""
    import jax
    import numpy
    with jax.set_mesh(jax.sharding.Mesh([device], ("one",))):  # The program may have set one of all processes.
        return jax.jit(lambda matrix: matrix @ matrix)(jax.device_put(numpy.zeros((64, 64), numpy.float32), device))


def _await_work() -> None:
    """Waits for what JAX has queued, whatever comes of it: each collective has a deadline. Ctrl-C ends the wait."""
    from jax._src import xla_bridge
    client = getattr(xla_bridge, "_backends", {}).get("cpu")
    if client is None:
        return  # It was never made.
    waiting = client.live_arrays()
    try:
        waiting.append(_last_of_this_thread(client.local_devices()[0]))
    except Exception:  # pylint: disable=broad-except
        pass
    pause = 0.0001
    while waiting:
        waiting = [array for array in waiting if not _is_done(array)]
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _failure() -> Optional[BaseException]:
    """The exception by which the program ends. Others may be kept there: that of an interactive program which went on, or
    one that a library has printed."""
    trace = getattr(sys, "last_traceback", None)
    if trace is None or hasattr(sys, "ps1"):
        return None
    module = trace.tb_frame.f_globals.get("__name__")
    is_program = module == "runpy" or (module == "__main__" and trace.tb_frame.f_code.co_name == "<module>")
    return sys.last_value if is_program else None


@_BEFORE_LEAVING
def _before_leaving(why, room):
    # JAX finalizes MPI when a program ends, while its work may still be queued: other processes wait for their share of it.
    try:
        failure = _failure()
        if failure is None:
            _await_work()
            return 0
        reason = f"its program ended by an exception, {type(failure).__name__}"
    except Exception:  # pylint: disable=broad-except
        return 0  # A JAX that has other insides. MPI_Finalize waits for calls under way all the same.
    except BaseException as error:  # pylint: disable=broad-except
        reason = f"its program was at its end, and a wait for its work was interrupted, {type(error).__name__}"
    _write(reason, why, room)
    return 1


def _refuse_if_late() -> None:
    # jaxlib looks for its MPI when it is loaded, and never again.
    if "jaxlib" in sys.modules and os.environ.get("MPITRAMPOLINE_LIB") != _LIBRARY:
        raise RuntimeError("pyannulus.jax.enable() comes too late: JAX is loaded already. Call it before the program's first "
                           "`import jax`")


def enable() -> None:
    """Makes JAX use Annulus for collectives between processes on CPUs. Before the first `import jax`; the
    processes meet through jax.distributed.initialize(), which comes later. A second call does nothing."""
    if _kept:
        return
    _refuse_if_late()
    if not os.path.exists(_LIBRARY):
        raise RuntimeError(f"{_LIBRARY} is missing; was annulus installed from its wheel?")
    library = ctypes.CDLL(_LIBRARY)
    library.annulus_mpi_set_meeting.restype = ctypes.c_char_p
    meeting = _Meeting(struct_bytes=ctypes.sizeof(_Meeting), place=_place,
                       store=_Store(struct_bytes=ctypes.sizeof(_Store), set=_set, get=_get),
                       timeout_ms=0 if os.environ.get("ANNULUS_TIMEOUT_MS") else _TIMEOUT_MS,
                       connect_timeout_ms=0 if os.environ.get("ANNULUS_CONNECT_TIMEOUT_MS") else _CONNECT_TIMEOUT_MS,
                       before_leaving=_before_leaving, taken_signal=ctypes.pointer(_taken_signal))
    refusal = library.annulus_mpi_set_meeting(ctypes.byref(meeting))
    if refusal:
        raise RuntimeError(f"pyannulus.jax.enable(): {refusal.decode()}")
    _kept.append(meeting)
    os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "mpi"
    os.environ["MPITRAMPOLINE_LIB"] = _LIBRARY
    if "jax" in sys.modules:  # The library was named before the program began; the kind of collectives may not have been.
        sys.modules["jax"].config.update("jax_cpu_collectives_implementation", "mpi")


def _coordinator(rendezvous: str) -> "tuple[socket.socket, str]":
    """A port of this host for JAX's service, and the socket that keeps it from others until the service listens there."""
    host = rendezvous.rpartition(":")[0]
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # As gRPC does.
    held.bind(("127.0.0.1" if host == "127.0.0.1" else "", 0))
    return held, f"{host}:{held.getsockname()[1]}"


def _rendezvous() -> str:
    """Where the launcher's ranks meet, as the library knows it."""
    library = ctypes.CDLL(os.path.join(os.path.dirname(_LIBRARY), "libannulus.so.0"))
    value = ctypes.create_string_buffer(1024)
    if library.annulus_config_value(None, b"rendezvous", value, ctypes.c_size_t(len(value))) != 0:
        raise RuntimeError("pyannulus.jax.initialize(): no launcher has started this program; use enable() and "
                           "jax.distributed.initialize(coordinator_address, num_processes, process_id)")
    return value.value.decode()


def initialize(**options: Any) -> None:
    """enable(), and jax.distributed.initialize() for ranks that annulus-run or another launcher of docs/launchers.md has
    started: with their rank and size, and at a port of rank 0's host. `options` are passed on."""
    import numpy

    enable()
    held = None
    address = numpy.zeros(256, numpy.uint8)
    with Communicator() as ranks:
        if ranks.rank == 0:
            held, text = _coordinator(_rendezvous())
            address[:len(text)] = numpy.frombuffer(text.encode(), numpy.uint8)
        ranks.broadcast(address)
        rank, size = ranks.rank, ranks.size
    coordinator = address.tobytes().rstrip(b"\0").decode()
    if coordinator.startswith("127.0.0.1:"):
        options.setdefault("coordinator_bind_address", coordinator)  # Nothing else need reach it.
    import jax
    try:
        jax.distributed.initialize(coordinator_address=coordinator, num_processes=size, process_id=rank, **options)
    finally:
        if held is not None:
            held.close()
