"""CUDA tensors on the stand-in for CUDA's driver (torch_cuda_stand_in.cc over torch_cuda_gpu.h). ANNULUS_TEST_CUDA names a folder with the stand-in and the extension."""

import contextlib
import ctypes
import importlib.util
import os

_folder = os.environ["ANNULUS_TEST_CUDA"]
ctypes.CDLL(f"{_folder}/libcuda.so.1")

import torch  # noqa: E402

_spec = importlib.util.spec_from_file_location("torch_cuda_stand_in", f"{_folder}/torch_cuda_stand_in.so")
gpu = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gpu)
gpu.is_real = False
gpu.devices = lambda: 2
torch.cuda._lazy_init = lambda: None  # It would look for a real driver.
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch._C._get_accelerator = lambda *_: torch.device("cuda")  # Where PyTorch looks for the device of a barrier.


def cuda(tensor, device=0):
    """A copy on a device, enqueued in its current stream."""
    return tensor.to(f"cuda:{device}")


class Graph:
    """What torch.cuda.CUDAGraph is: calls that were captured from a stream, to be made again by each replay in the current one."""

    def __init__(self):
        self._exec = None

    def capture_end(self, handle):
        self._exec = gpu.end_capture(handle)

    def replay(self):
        gpu.launch(self._exec)

    def reset(self):
        gpu.destroy_graph(self._exec)
        self._exec = None


@contextlib.contextmanager
def captured(handle):
    """What the stream gets within becomes the graph that this gives; the stream is current meanwhile."""
    graph = Graph()
    with stream(handle):
        gpu.begin_capture(handle)
        try:
            yield graph
        finally:
            graph.capture_end(handle)


@contextlib.contextmanager
def held():
    """No work of the GPU begins."""
    gpu.hold(True)
    try:
        yield
    finally:
        gpu.hold(False)


@contextlib.contextmanager
def stream(handle=None, device=0):
    """Another current stream: 0, the default one, a new one, or that with the handle."""
    before = gpu.exchange_stream(device, gpu.new_stream(device) if handle is None else handle)
    try:
        yield
    finally:
        gpu.exchange_stream(device, before)
