"""Communicators: a group of ranks and the collectives that they call together."""

import functools
import os
import threading
import weakref
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type, TypeVar, Union

from pyannulus import _arrays, _core
from pyannulus._arrays import Array
from pyannulus._calls import Calls
from pyannulus._errors import Error
from pyannulus._operation import Operation

T = TypeVar("T")

# What the communicators are in C++: calls with options of their own keep one without its Communicator.
_open: "weakref.WeakSet[_core.Handle]" = weakref.WeakSet()


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


class Communicator(Calls):
    """A group of ranks. Every rank must call the same collectives in the same order. `settings` are those of
    docs/tuning.md, by name; what is not given comes from the environment."""

    def __init__(self, **settings: Union[int, str]) -> None:
        unknown = sorted(settings.keys() - set(_core.SETTINGS))
        if unknown:
            raise TypeError(f"unknown settings: {', '.join(unknown)}; there are {', '.join(_core.SETTINGS)}")
        self._adopt(_interruptible(_core.create, settings))

    def _adopt(self, core: _core.Handle) -> None:
        super().__init__(core, _core.Calls(0, 0, "", None, False, None))
        _open.add(core)

    @classmethod
    def _of(cls, core: _core.Handle) -> "Communicator":
        made = cls.__new__(cls)
        made._adopt(core)
        return made

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
        return f"<pyannulus.Communicator rank {self.rank} of {self.size}{', closed' if self.closed else ''}>"

    def split(self, colour: int, key: int = 0) -> "Optional[Communicator]":
        """A new communicator of the ranks that gave the same colour, in the order of (key, rank); None for a negative
        colour. Every rank must call it."""
        self._core.check_not_in_reduction()  # Here, as it is another thread that joins.
        core = _interruptible(self._core.split, colour, key)
        return None if core is None else Communicator._of(core)

    def dup(self) -> "Communicator":
        """A new communicator of the same ranks, with a queue of its own: for another thread, for example."""
        self._core.check_not_in_reduction()
        return Communicator._of(_interruptible(self._core.dup))

    def memory(self) -> Dict[str, int]:
        """What the communicator holds on this rank, in bytes by purpose, as annulus_memory_t in annulus.h tells."""
        return self._core.memory()

    def device(self) -> Dict[str, Any]:
        """How it works on GPU memory, as annulus_device_t in annulus.h tells; why: the reason why no better path is taken."""
        return self._core.device()

    def premul_sum(self, factor: float) -> Operation:
        """A sum to which this rank contributes its elements times `factor`, which may differ from rank to rank."""
        return Operation(self._core, self._core.create_premul_sum(factor))

    def reduction(self, function: Callable[[Array, Array, Array], Optional[Array]]) -> Operation:
        """A reduction by function(left, right, out), which writes `out` or returns the result: all are one-dimensional and
        equally long, `left` and `right` read-only, `out` perhaps one of them, and none to be kept. It must be associative,
        treat each element for itself, give the same bits on every rank, and leave the communicator alone. It may run
        in another thread. What it raises comes out of wait, and ends the communicator on every rank. It is let go of once
        nothing uses the operation any more."""
        return Operation(self._core, *self._core.create_reduction(functools.partial(_arrays.combine, function)))

    def counters(self) -> Dict[str, Any]:
        """What it has done up to now: the fields of annulus_counters_t, and by transport the bytes (docs/observing.md)."""
        return self._core.counters()

    def verdict(self) -> Optional[Error]:
        """The failure that ended the communicator on every rank; None while it is alive. Does not wait."""
        return self._core.verdict()

    def abort(self, reason: str = "") -> None:
        """Fails all pending and later work on every rank with pyannulus.Aborted, whose message has the reason."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leaves. Work that is pending fails. Happens by itself at the end of a with block or of the program."""
        self._core.close()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def close_all() -> None:
    for core in list(_open):
        core.close()


def _forget_in_child() -> None:
    for core in list(_open):
        core.abandon()


os.register_at_fork(after_in_child=_forget_in_child)
