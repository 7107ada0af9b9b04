"""What an array must be like for the library to use its memory as it is; whatever is not gets an error that says so.

An array is numpy's, or one of another library that _foreign takes. Calls see the latter as a view."""

import collections.abc
import math
import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from pyannulus import _core, _foreign

# Also arrays that have __dlpack__ or __cuda_array_interface__.
Array = numpy.ndarray[Any, Any]
# What calls are given.
View = Union[numpy.ndarray[Any, Any], _foreign.View]

_type_of_dtype: Dict[Any, int] = {}  # Names are slow to ask for: each dtype is looked up once.


def _look_up(dtype: Any, what: str) -> int:
    # By name, which ml_dtypes' types have too without being known here.
    number = _core.TYPES.get(dtype.name)
    if number is None or not dtype.isnative:
        raise TypeError(f"{what} has dtype {dtype!r}; Annulus knows {', '.join(_core.TYPES)}, in this machine's byte order")
    _type_of_dtype[dtype] = number
    return number


class Use(NamedTuple):
    """For what arrays are taken: calls of a communicator, in a stream or without one."""

    core: _core.Handle
    stream: Optional[int] = None


def take(use: Use, array: Array, what: str) -> Tuple[View, int]:
    """An array that the library can use, as calls want it, and its element type's number."""
    if isinstance(array, numpy.ndarray):
        return array, check(array, what)
    view, on_gpu = _foreign.take(array, what, use.stream)
    if on_gpu and not use.core.device()["driver"]:
        raise RuntimeError(f"{what} is on a GPU, which the library cannot use: {use.core.device()['why']}. The program must use"
                           " CUDA before its first communicator")
    return view, _foreign.check(view, what)


def check(array: Array, what: str) -> int:
    """The element type's number of a numpy array that the library can use."""
    number = _type_of_dtype.get(array.dtype)
    if number is None:
        number = _look_up(array.dtype, what)
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not C-contiguous (shape {array.shape}, strides {array.strides}), and Annulus makes no"
                         " copies; numpy.ascontiguousarray makes one")
    if not array.flags.aligned:
        raise ValueError(f"{what} is not aligned to its element's {array.itemsize} bytes; numpy.copy is")
    return number


def _extents_and_bytes(shape: Union[int, Sequence[int]], kind: Any) -> Tuple[Tuple[int, ...], int]:
    extents = tuple(numbers(shape, "shape")) if isinstance(shape, Sequence) else (operator.index(shape),)
    size = int(kind.itemsize)
    for extent in extents:
        if extent < 0:
            raise ValueError(f"shape {extents} has a negative extent")
        size *= extent
    return extents, size


def empty(shape: Union[int, Sequence[int]], dtype: Any = numpy.float32) -> Array:
    """An array of zeros in registered memory, which ranks of one host read in place: for what is reduced again and again.
    Freed with its last view."""
    kind = numpy.dtype(dtype)
    extents, size = _extents_and_bytes(shape, kind)
    if size == 0:
        return numpy.zeros(extents, kind)
    return numpy.frombuffer(_core.RegisteredMemory(size), kind, size // kind.itemsize).reshape(extents)


class GpuArray:
    """Zeros in memory of a GPU that ranks of one host reach in each other. It has no arithmetic: cupy.asarray(array) and
    torch.as_tensor(array, device="cuda") give views that have. Freed with the last of them."""

    def __init__(self, shape: Tuple[int, ...], dtype: Any, memory: _core.GpuMemory) -> None:
        self.shape = shape
        self.dtype = dtype
        self._memory = memory

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self._memory.address, False), "version": 3}


def empty_on_gpu(shape: Union[int, Sequence[int]], dtype: Any = numpy.float32, device: int = 0) -> GpuArray:
    """As empty, in memory of GPU `device`. The program must have used CUDA before. The memory is freed with the last view of it: all work that
    uses it must be over by then, as with annulus_mem_free."""
    kind = numpy.dtype(dtype)
    if kind.kind not in "iufc":
        raise TypeError(f"dtype {kind!r} has no name that arrays on a GPU may have")
    extents, size = _extents_and_bytes(shape, kind)
    return GpuArray(extents, kind, _core.GpuMemory(size, device))


def check_writable(array: View, what: str) -> None:
    if array.readonly if isinstance(array, _foreign.View) else not array.flags.writeable:
        raise ValueError(f"{what} is read-only")


def _range(array: View) -> Tuple[int, int]:
    begin = array.address if isinstance(array, _foreign.View) else array.ctypes.data
    # numpy's own number: buffers have no name for the types of ml_dtypes.
    return begin, begin + (memoryview(array).nbytes if isinstance(array, _foreign.View) else array.nbytes)  # type: ignore[arg-type]


def check_apart(array: View, into: View) -> None:
    """Of an exchange, which has no form in place."""
    begin, end = _range(array)
    first, last = _range(into)
    if begin < last and first < end and begin < end and first < last:
        raise ValueError("array and into overlap")


def _name(number: int) -> str:
    return next(name for name, known in _core.TYPES.items() if known == number)


def same_output(array: View, given: Array) -> Tuple[View, Array]:
    """output() of a call in place, of an array that is taken already."""
    check_writable(array, "out")
    return array, given


def output(use: Use, array: View, number: int, out: Optional[Array],
           shape: Tuple[int, ...]) -> Tuple[View, Array]:
    """Where the result goes, as calls want it and as the user gets it: `out`, which may have another shape with as many
    elements, or a new array."""
    if out is None:
        if isinstance(array, _foreign.View):
            raise TypeError("out is None, and array is not numpy's: only numpy arrays are made here. Give out, an array of"
                            f" {_name(number)} and shape {shape}")
        new = numpy.empty(shape, array.dtype)
        return new, new
    target, found = take(use, out, "out")
    check_writable(target, "out")
    if found != number:
        raise TypeError(f"out has dtype {_name(found)}, array has {_name(number)}")
    size = 1
    for extent in shape:
        size *= extent
    if target.size != size:
        raise ValueError(f"out has {target.size} elements, the result {size}: shape {shape}")
    return target, out


def rows(array: View) -> Tuple[int, Tuple[int, ...]]:
    """The length of the first axis and the shape of what lies along it; a single number is one row."""
    return (array.shape[0], array.shape[1:]) if array.ndim else (1, ())


def part(array: View, size: int, what: str) -> Tuple[int, ...]:
    """The shape of a rank's part of an array that is cut along its first axis."""
    count, row = rows(array)
    if count % size:
        raise ValueError(f"{what} has {count} rows (shape {array.shape}), which {size} ranks cannot share equally")
    return (count // size, *row)


def _number(given: Any, what: str) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{what} has the entry {given!r}, which is no integer") from None


def numbers(given: Sequence[int], what: str) -> List[int]:
    """As Python's own numbers: sums of numpy's narrow ones wrap."""
    try:
        # A set has no order, and forgets what is given twice.
        entries = None if isinstance(given, (collections.abc.Set, collections.abc.Mapping)) else list(given)
    except TypeError:
        entries = None
    if entries is None:
        raise TypeError(f"{what} is of type {type(given).__name__}; it must be a sequence of integers, such as a list")
    return [_number(each, what) for each in entries]


def rows_of_parts(counts: Sequence[int], size: int, what: str) -> List[int]:
    """The rows of each rank's part."""
    of_ranks = numbers(counts, what)
    if len(of_ranks) != size:
        raise ValueError(f"{what} has {len(of_ranks)} entries; there are {size} ranks")
    if any(count < 0 for count in of_ranks):
        raise ValueError(f"{what} has a negative entry: {of_ranks}")
    return of_ranks


def elements_of(rows_of_ranks: Sequence[int], row: Tuple[int, ...]) -> List[int]:
    """The elements of each rank's part."""
    return [count * math.prod(row) for count in rows_of_ranks]


def check_rows(array: View, expected: int, what: str, counts: str) -> None:
    """That as many rows are there as `counts` says."""
    count = rows(array)[0]
    if count != expected:
        raise ValueError(f"{what} has {count} rows (shape {array.shape}), {counts} says {expected}")


def combine(function: Callable[[Array, Array, Array], Optional[Array]], left: memoryview, right: memoryview,
            out: memoryview, number: int) -> None:
    """What the library calls for a reduction by `function`."""
    # A numpy array's was looked up before; others may have one that numpy does not know.
    dtype = next((dtype for dtype, known in _type_of_dtype.items() if known == number), None) or numpy.dtype(_name(number))
    target = numpy.frombuffer(out, dtype)
    result = function(numpy.frombuffer(left, dtype), numpy.frombuffer(right, dtype), target)
    if result is not None and result is not target:
        target[...] = result


def op_number(op: str) -> int:
    if not isinstance(op, str):
        raise TypeError(f"op is a {type(op).__name__}, not a name or what reduction or premul_sum gave")
    number = _core.OPS.get(op)
    if number is None:
        raise ValueError(f"unknown op {op!r}; there are {', '.join(_core.OPS)}")
    return number
