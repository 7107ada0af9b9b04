"""CUDA streams of other libraries."""

from typing import Any

# Numbers that CUDA gives to the default streams, beside 0 for the legacy one.
LEGACY = 1


def handle_of(stream: Any) -> int:
    """The handle of a stream: a number, or an object of cuda.core and others that have __cuda_stream__, PyTorch, CuPy or
    Numba."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    handle = getattr(stream, "__cuda_stream__", None)
    if handle is not None:
        return int((handle() if callable(handle) else handle)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            handle = getattr(stream, name)
            return int(getattr(handle, "value", handle) or 0)  # Numba has a ctypes.c_void_p.
    raise TypeError(f"stream is a {type(stream).__name__}, not a number, nor a stream of CUDA that has __cuda_stream__, cuda_stream,"
                    " ptr or handle")


def are_equal(left: int, right: int) -> bool:
    """Whether two handles are the same stream's."""
    return (left or LEGACY) == (right or LEGACY)
