"""What the ranks of the tests of the back end for PyTorch share. A script has the arguments FOLDER RANK SIZE FORM, and runs every function case_*,
each with a line: "passed NAME" or "failed NAME" with the traceback. torch_test.py starts the ranks, which meet through a file of FOLDER. FORM:
compiled, python, or mixed, where every second rank has the other one."""

import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
         torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


def values(dtype, rank, count=5):
    """Small numbers that every type has, different on each rank."""
    if dtype == torch.bool:
        return torch.tensor([(index + rank) % 2 == 0 for index in range(count)])
    # Sums of a few are exact in 8 bits too.
    return torch.tensor([(index + rank) % 2 + 1 if dtype.itemsize == 1 else index + rank + 1 for index in range(count)], dtype=torch.float64).to(dtype)


def same(tensor, expected):
    """Same type, shape and bits."""
    assert tensor.dtype == expected.dtype and tensor.shape == expected.shape, (tensor, expected)
    assert torch.equal(tensor.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)), (tensor, expected)


def wide(tensor):
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def raises(part, function, *args, **named):
    try:
        function(*args, **named)
    except RuntimeError as error:
        assert part in str(error), error
        return error
    raise AssertionError(f"no error with {part!r}")


def is_compiled():
    """Whether this rank has the compiled form. That in Python has no titles in profiles, and its works do not tell their state."""
    return os.environ["TORCH_ANNULUS_FORM"] == "compiled"


# Whether this is PyTorch 2.11 or so, which does not look for back ends that are installed, gives no work's exception to Python, and lets only gloo have monitored_barrier.
IS_OLD = not hasattr(dist.Backend, "_ensure_backend_registered")
# Before PyTorch 2.15, split_group wants a device that is no CPU, whatever the back end.
SPLITS_CPU_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


def register_if_old():
    if IS_OLD:
        import annulus_torch
        annulus_torch.register()


def init(backend, folder, rank, size, seconds=120):
    """The process group of a script's ranks."""
    register_if_old()
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=seconds))


def run(names, backend="annulus"):
    folder, rank, size, form = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ["TORCH_ANNULUS_FORM"] = ("python", "compiled")[rank % 2] if form == "mixed" else form
    torch.set_num_threads(1)
    init(backend, folder, rank, size)
    for name, case in sorted(names.items()):
        if not name.startswith("case_"):
            continue
        try:
            case(rank, size)
            print("passed", name, flush=True)
        except Exception:  # pylint: disable=broad-except
            print("failed", name, traceback.format_exc(), flush=True)
            os._exit(1)  # What comes next would not match the other ranks.
    dist.destroy_process_group()
    sys.exit(0)
