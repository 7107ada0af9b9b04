"""What torch_cuda_tensors.py has, on a real GPU: the device cuda:0, whose work is held back by a kernel that spins."""

import contextlib
import time

import torch

HELD_SECONDS = 0.15  # Longer than the host takes to enqueue a call and what belongs to it.


def _cycles_per_second():
    torch.cuda._sleep(300_000_000)  # Wakes it up.
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(100_000_000)
    torch.cuda.synchronize()
    return 100_000_000 / (time.perf_counter() - begin)


_cycles = int(HELD_SECONDS * _cycles_per_second())


class Gpu:
    """What the tests ask the stand-in, as far as a GPU can tell."""

    is_real = True

    def devices(self):
        return torch.cuda.device_count()

    def violations(self):
        return 0  # Wrong results show them.

    def threads(self):
        return 1

    def pending(self):
        return 0 if torch.cuda.current_stream().query() else 1

    def reused(self):
        return 0

    def new_stream(self, device):
        return torch.cuda.Stream(device)

    def user_objects(self):
        return 0

    def synchronize(self, device):
        torch.cuda.synchronize(device)


gpu = Gpu()


def cuda(tensor, device=0):
    """A copy on a device, made by work in its current stream. The host does not wait for it."""
    if tensor.numel() == 0:
        return torch.empty_like(tensor, device=f"cuda:{device}")
    there = tensor.pin_memory().to(f"cuda:{device}", non_blocking=True)
    return there + there - there if there.dtype in (torch.float32, torch.float64) else there.clone()  # By kernels, where they are exact.


@contextlib.contextmanager
def captured(handle):
    """What the stream gets within becomes the graph that this gives; the stream is current meanwhile."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(handle):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield graph
        finally:
            graph.capture_end()


@contextlib.contextmanager
def held():
    """No work that the current stream gets within begins before HELD_SECONDS have passed."""
    torch.cuda._sleep(_cycles)
    yield


@contextlib.contextmanager
def stream(handle=None, device=0):
    """Another current stream: 0, the default one, a new one, which is joined in the end, or that with the handle."""
    chosen = torch.cuda.Stream(device) if handle is None else torch.cuda.default_stream(device) if handle == 0 else handle
    with torch.cuda.stream(chosen):
        yield
    if handle is None:
        torch.cuda.current_stream(device).wait_stream(chosen)
