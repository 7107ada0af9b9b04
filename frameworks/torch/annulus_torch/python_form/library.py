"""libannulus.so by ctypes, and its failures as PyTorch's DistBackendError. The bindings are written from annulus.h when the wheel is made."""

import ctypes
import functools
import pathlib

from torch.distributed import DistBackendError

from annulus_torch import bindings as annulus

PACKAGE = pathlib.Path(__file__).parent.parent


@functools.lru_cache(maxsize=None)
def library():
    main = next(PACKAGE.glob("libannulus.so.*"))
    for other in PACKAGE.glob("*.so*"):
        if other != main:
            ctypes.CDLL(str(other))  # The library needs it, and finds it by its name once it is loaded.
    return annulus.load(str(main))


def make(struct):
    """A struct that knows its size."""
    made = struct()
    made.struct_bytes = ctypes.sizeof(struct)
    return made


def failure(status, call, comm=None):
    """Why `call`, which this thread has just made, failed; or one of `comm` that was queued, which fails only with its communicator."""
    error = make(annulus.annulus_error_t)
    if comm is None:
        library().annulus_last_error(error)
    else:
        library().annulus_comm_verdict(comm, error)
    # Programs look for " timeout " in the errors of PyTorch's own back ends.
    what = "the timeout passed" if status == annulus.ANNULUS_TIMEOUT else library().annulus_status_string(status).decode()
    text = f"Annulus: {call}: {what}"
    if error.status != annulus.ANNULUS_OK:
        text += f": {error.message.decode()}" if error.message else ""
        text += f" [at fault: rank {error.rank} of the group]" if error.rank >= 0 else ""
        text += f". {error.advice.decode()}" if error.advice else ""
    return DistBackendError(text)


def check(status, call):
    if status != annulus.ANNULUS_OK:
        raise failure(status, call)
