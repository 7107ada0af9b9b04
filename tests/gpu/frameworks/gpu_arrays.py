"""One rank of calls of pyannulus on a GPU's arrays, with values checked: gpu_arrays.py, started by annulus-run. PyTorch's and CuPy's by DLPack, Numba's by
__cuda_array_interface__, in streams of all of them and of cuda.core. Arrays are filled by kernels right before the call, behind one that takes long. A
library that is not there says "not run". DEVICE=cpu tries PyTorch's part without a GPU."""

import contextlib
import importlib
import os

import numpy as np
import torch

DEVICE = os.environ.get("DEVICE", "cuda")
if DEVICE == "cuda":
    torch.cuda.init()
    torch.zeros(1, device="cuda")

import array_cases  # noqa: E402
import pyannulus  # noqa: E402

TYPES = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16,
         torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
COUNT = 300_001


def library(name):
    try:
        return importlib.import_module(name)
    except Exception as error:  # pylint: disable=broad-except
        print(f"not run: no {name}: {type(error).__name__}: {error}", flush=True)
        return None


def spin():
    if DEVICE == "cuda":
        torch.cuda._sleep(20_000_000)


def total(size):
    return size * (size + 1) // 2


def torch_stream():
    return torch.cuda.Stream() if DEVICE == "cuda" else None


def torch_in(stream):
    return torch.cuda.stream(stream) if DEVICE == "cuda" else contextlib.nullcontext()


def case_torch_every_type(rank, size):
    for dtype in TYPES:
        tensor = torch.full((500,), rank + 1, dtype=torch.float64, device=DEVICE).to(dtype)
        place = tensor.data_ptr()
        assert pyannulus.allreduce(tensor, "max", out=tensor) is tensor
        assert tensor.data_ptr() == place and (tensor.cpu().to(torch.float64) == size).all(), (dtype, tensor)
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.full((3,), complex(1, rank), dtype=dtype, device=DEVICE)
        pyannulus.allreduce(tensor, out=tensor)
        assert (tensor == complex(size, size * (size - 1) // 2)).all().item(), tensor
    flags = torch.tensor([False, rank == 0, True], device=DEVICE)
    assert pyannulus.allreduce(flags, out=flags).tolist() == [False, True, True]


def case_torch_calls_without_a_stream(rank, size):
    """What fills an array is waited for, whichever stream it is in."""
    for stream in (None, torch_stream()):
        with torch_in(stream) if stream is not None else contextlib.nullcontext():
            spin()
            tensor = torch.full((COUNT,), rank + 1.0, device=DEVICE)
            pyannulus.allreduce(tensor, out=tensor)
            assert (tensor == total(size)).all().item()
            spin()
            gathered = pyannulus.allgather(torch.full((5, 3), float(rank), device=DEVICE), out=torch.empty(5 * size, 3, device=DEVICE))
            assert torch.equal(gathered.cpu(), torch.arange(float(size)).repeat_interleave(5)[:, None].expand(-1, 3))
            spin()
            mixed = pyannulus.allreduce(torch.full((COUNT,), rank + 1.0, device=DEVICE), out=np.zeros(COUNT, np.float32))
            assert (mixed == total(size)).all()
            part = pyannulus.reduce_scatter(torch.ones(size * 1000, device=DEVICE), out=torch.empty(1000, device=DEVICE))
            assert (part == size).all().item()
            sent = pyannulus.send_async(torch.full((COUNT,), float(rank), device=DEVICE), (rank + 1) % size)
            got = pyannulus.recv(torch.empty(COUNT, device=DEVICE), (rank - 1) % size)
            assert (got == (rank - 1) % size).all().item()
            sent.wait()
    print("device:", pyannulus.device(), flush=True)


def in_stream(stream, fill, check):
    """Calls in the stream, between fill() and check(array), which go into it; nothing waits for them."""
    calls = pyannulus.with_options(stream=stream)
    for step in range(5):
        array = fill(step)
        assert calls.allreduce(array, out=array) is array
        calls.broadcast(array, root=pyannulus.size() - 1)
        request = calls.allreduce_async(array, "max", out=array)
        check(array, step)
        request.wait()
    assert pyannulus.verdict() is None


def case_torch_in_streams(rank, size):
    if DEVICE != "cuda":
        return
    wrong = []
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            def fill(step):
                spin()
                return torch.full((COUNT,), rank + 1.0 + step, device=DEVICE)
            in_stream(stream, fill, lambda array, step: wrong.append((array != total(size) + step * size).sum()))
    assert [each.item() for each in wrong] == [0] * 10, wrong


def case_torch_in_streams_of_other_libraries(rank, size):
    """Their handles: PyTorch works in the same stream as an external one."""
    core = DEVICE == "cuda" and (library("cuda.core") or library("cuda.core.experimental"))
    cupy = DEVICE == "cuda" and library("cupy")
    numba = DEVICE == "cuda" and library("numba.cuda")
    streams = {}
    if core:
        device = core.Device(0)
        device.set_current()
        made = device.create_stream()
        streams["cuda.core"] = (made, int(made.handle))
    if cupy:
        made = cupy.cuda.Stream(non_blocking=True)
        streams["cupy"] = (made, made.ptr)
    if numba:
        made = numba.stream()
        streams["numba"] = (made, int(getattr(made.handle, "value", made.handle)))
    for name, (stream, handle) in streams.items():
        wrong = []
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            def fill(step):
                spin()
                return torch.full((COUNT,), rank + 1.0 + step, device=DEVICE)
            in_stream(stream, fill, lambda array, step: wrong.append((array != total(size) + step * size).sum()))
        assert [each.item() for each in wrong] == [0] * 5, (name, wrong)
        print("stream of", name, "works", flush=True)


def case_cupy(rank, size):
    cupy = DEVICE == "cuda" and library("cupy")
    if not cupy:
        return
    for dtype in ("int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64", "bool"):
        array = cupy.full(500, True if dtype == "bool" else rank + 1, dtype)
        pyannulus.allreduce(array, out=array)
        assert (cupy.asnumpy(array) == (True if dtype == "bool" else total(size))).all(), dtype
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            array = cupy.arange(COUNT, dtype=cupy.float32) % 97 + rank
            pyannulus.allreduce(array, out=array)
            assert bool((array == cupy.arange(COUNT, dtype=cupy.float32) % 97 * size + size * (size - 1) // 2).all())
            wrong = []
            in_stream(stream, lambda step: cupy.full(COUNT, rank + 1 + step, cupy.float32),
                      lambda array, step: wrong.append((array != total(size) + step * size).sum()))
            assert [int(each) for each in wrong] == [0] * 5, wrong
    print("cupy works", flush=True)


def case_numba(rank, size):
    numba = DEVICE == "cuda" and library("numba.cuda")
    if not numba:
        return
    for stream in (0, numba.stream()):
        array = numba.to_device(np.full(COUNT, rank + 1, np.float32), stream=stream)
        pyannulus.allreduce(array, out=array)
        assert (array.copy_to_host() == total(size)).all()
        if stream != 0:
            array = numba.to_device(np.full(COUNT, rank + 1, np.float32), stream=stream)
            pyannulus.with_options(stream=stream).allreduce(array, out=array)
            found = array.copy_to_host(stream=stream)
            stream.synchronize()
            assert (found == total(size)).all()
    print("numba works", flush=True)


if __name__ == "__main__":
    array_cases.run(globals())
