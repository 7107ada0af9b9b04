"""A communicator whose ranks met through PyTorch's store."""

import contextlib
import ctypes
import datetime
import os
import sys
import threading
import weakref

from torch.distributed import DistBackendError

from annulus_torch import bindings as annulus
from annulus_torch.python_form.library import check, library, make

LONGEST_MS = 24 * 3600 * 1000

_open = weakref.WeakSet()


def timeout_ms(timeout):
    """A timedelta as annulus_call_t has it."""
    return min(max(1, round(timeout.total_seconds() * 1000)), LONGEST_MS)


def _callbacks(store):
    """The store as the library uses it."""

    def set_in_store(_context, key, value, size):
        try:
            store.set(key.decode(), ctypes.string_at(value, size))
            return 0
        except Exception as error:  # pylint: disable=broad-except
            print(f"annulus: the store cannot be written: {error}", file=sys.stderr, flush=True)
            return 1

    def get_from_store(_context, key, value, capacity, size, limit_ms):
        try:
            store.wait([key.decode()], datetime.timedelta(milliseconds=limit_ms))
            found = store.get(key.decode())
            size[0] = len(found)
            if len(found) <= capacity:
                ctypes.memmove(value, found, len(found))
            return 0
        except Exception:  # pylint: disable=broad-except
            return 1  # It was not there in time, or the store's server is gone: Annulus tells them apart by the time.

    callbacks = make(annulus.annulus_store_t)
    fields = dict(annulus.annulus_store_t._fields_)
    callbacks.set, callbacks.get = fields["set"](set_in_store), fields["get"](get_from_store)
    return callbacks


class Communicator:
    """Ends with close, when nothing refers to it any more, or at exit. Threads: any."""

    def __init__(self, store, rank, size, timeout):
        # A connection of its own: other threads may use the store while this one waits.
        callbacks = _callbacks(store.clone())
        config = annulus.annulus_config_t()
        check(library().annulus_config_init(config, ctypes.sizeof(config), annulus.ANNULUS_FROM_ENVIRONMENT), "init_process_group")
        config.rank, config.size = rank, size
        config.store = ctypes.pointer(callbacks)
        config.timeout_ms = config.connect_timeout_ms = timeout_ms(timeout)
        self.handle = ctypes.POINTER(annulus.annulus_comm_t)()
        check(library().annulus_comm_create(config, self.handle), "init_process_group")
        self._end = weakref.finalize(self, library().annulus_comm_destroy, self.handle)
        self._changed = threading.Condition()  # Guards what follows.
        self._users = 0  # Calls that threads are in.
        self._refusal = None  # Why there are no more calls; None: there are.
        _open.add(self)

    @contextlib.contextmanager
    def in_use(self):
        """Its handle, for a call: it stays meanwhile. DistBackendError once it is being closed, and in a forked child."""
        with self._changed:
            if self._refusal is not None:
                raise DistBackendError(self._refusal)
            self._users += 1
        try:
            yield self.handle
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def forget(self):
        """In a forked child, which must not use it."""
        self._changed, self._users = threading.Condition(), 0
        self._refusal = "Annulus: a forked child cannot use a process group of its parent"
        self._end.detach()

    def close(self, refusal="Annulus: the process group was shut down"):
        """Ends pending work, and waits for the callbacks and for threads that are in a call. Calls after it say `refusal`."""
        with self._changed:
            self._refusal = self._refusal or refusal
            if self._users:
                library().annulus_comm_abort(self.handle, b"the process group was shut down while a thread waited for a call")
            self._changed.wait_for(lambda: self._users == 0)
        self._end()


def _forget_in_child():
    for communicator in list(_open):
        communicator.forget()


os.register_at_fork(after_in_child=_forget_in_child)
