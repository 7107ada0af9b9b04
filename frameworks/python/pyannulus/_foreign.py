"""Arrays of other libraries than numpy, taken by DLPack or __cuda_array_interface__, without a copy."""

from typing import Any, Dict, Optional, Tuple

import numpy

from pyannulus import _core, _streams

# Device types of DLPack.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13

View = _core.ForeignArray


def take(array: Any, what: str, stream: Optional[int]) -> Tuple[View, bool]:
    """The array's memory, whose content is ready, or will be for what is put into `stream`, and whether it is a GPU's; a
    GPU's only after the program has used CUDA."""
    kind = type(array)
    if hasattr(kind, "__dlpack__"):
        view, on_gpu = _by_dlpack(array, what, stream)
    elif getattr(array, "__cuda_array_interface__", None) is not None:
        view, on_gpu = _by_cuda_interface(array, what, stream), True
    else:
        raise TypeError(f"{what} is a {kind.__name__}, not a numpy array, nor one that has __dlpack__ or"
                        " __cuda_array_interface__; numpy.asarray may make one")
    return view, on_gpu


def _by_dlpack(array: Any, what: str, stream: Optional[int]) -> Tuple[View, bool]:
    try:
        kind, number = (int(each) for each in array.__dlpack_device__())
        on_gpu = kind in (_CUDA, _CUDA_MANAGED)
        view = _core.from_dlpack(_capsule(array, on_gpu, stream)) if on_gpu or kind in (_CPU, _CUDA_HOST) else None
    except (BufferError, RuntimeError, ValueError) as error:
        raise ValueError(f"{what}, a {type(array).__name__}, cannot be taken by DLPack: {error}") from error
    if view is None:
        raise TypeError(f"{what} is on a device of DLPack's type {kind}; Annulus knows host memory and NVIDIA GPUs")
    if on_gpu and view.size and stream is None:
        _wait(view.address, number, _streams.LEGACY, what)
    return view, on_gpu


def _capsule(array: Any, on_gpu: bool, stream: Optional[int]) -> Any:
    # The array's library lets the call's stream wait for what fills the array; of a call without one the legacy default
    # stream, in which work waits for other streams, and we wait for that.
    options: Dict[str, Any] = {"stream": stream or _streams.LEGACY} if on_gpu else {}
    try:
        return array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # From before DLPack 1.0.
        return array.__dlpack__(**options)


def _by_cuda_interface(array: Any, what: str, stream: Optional[int]) -> View:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ValueError(f"{what} has a mask, which Annulus does not know")
    dtype = numpy.dtype(interface["typestr"])
    element = _core.TYPES.get(dtype.name, -1) if dtype.isnative else -1
    if element < 0:
        raise TypeError(f"{what} has the type {interface['typestr']} in its __cuda_array_interface__; Annulus knows"
                        f" {', '.join(_core.TYPES)}, in this machine's byte order")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None and 0 not in shape:
        expected = dtype.itemsize
        for extent, stride in zip(reversed(shape), reversed(strides)):
            if extent != 1 and stride != expected:
                raise ValueError(f"{what} is not C-contiguous (shape {shape}, strides {tuple(strides)}), and Annulus"
                                 " makes no copies")
            expected *= extent
    address, readonly = interface["data"]
    view = View(address or 0, shape, element, readonly, array)
    filled_in = interface.get("stream")
    if filled_in == 0:
        raise ValueError(f"{what} has the stream 0 in its __cuda_array_interface__, which may be either default stream")
    is_ordered = filled_in is None or (stream is not None and _streams.are_equal(filled_in, stream))
    if view.size and not is_ordered:
        _wait(view.address, -1, filled_in, what)
    return view


def _wait(address: int, device: int, stream: int, what: str) -> None:
    try:
        _core.wait_for_stream(address, device, stream)
    except RuntimeError as error:
        raise RuntimeError(f"{what}: waiting for what fills it: {error}") from error


def check(view: View, what: str) -> int:
    """The element type's number of an array that the library can use."""
    if view.element < 0:
        raise TypeError(f"{what} has the type {view.type_name}; Annulus knows {', '.join(_core.TYPES)}")
    if not view.contiguous:
        raise ValueError(f"{what} is not C-contiguous (shape {view.shape}), and Annulus makes no copies")
    if not view.aligned:
        raise ValueError(f"{what} is not aligned to its elements")
    return view.element
