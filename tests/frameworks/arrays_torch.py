"""One rank of the tests of tensors of PyTorch in calls of pyannulus, which takes them by DLPack: arrays_torch.py. Runs every function
case_* and prints a line for each: "passed NAME" or "failed NAME", with the traceback. arrays_test.py starts the ranks by annulus-run."""

import numpy as np
import torch

import array_cases
import pyannulus

TYPES = [torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int16, torch.uint16]


def refuses(kind, words, function, *args, **named):
    try:
        function(*args, **named)
    except kind as error:
        assert words in str(error), (words, str(error))
        return
    raise AssertionError(f"expected {kind.__name__}: {words}")


def case_tensors_of_every_type(rank, size):
    for dtype in TYPES:
        tensor = torch.full((5,), rank + 1, dtype=torch.float64).to(dtype)
        place = tensor.data_ptr()
        assert pyannulus.allreduce(tensor, "max", out=tensor) is tensor
        assert tensor.data_ptr() == place and (tensor.to(torch.float64) == size).all(), (dtype, tensor)


def case_bools_and_complex_numbers(rank, size):
    flags = torch.tensor([False, rank == 0, True])
    assert pyannulus.allreduce(flags, out=flags).tolist() == [False, True, True]
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.full((3,), complex(1, rank), dtype=dtype)
        pyannulus.allreduce(tensor, out=tensor)
        assert (tensor == complex(size, size * (size - 1) // 2)).all(), tensor


def case_tensors_beside_numpy_arrays(rank, size):
    total = size * (size + 1) // 2
    tensor, array = torch.full((2, 3), rank + 1.0), np.full((2, 3), rank + 1, np.float32)
    assert (pyannulus.allreduce(tensor, out=array) == total).all()
    assert (pyannulus.allreduce(np.full(6, rank + 1, np.float32), out=tensor) == total).all()


def case_other_calls(rank, size):
    gathered = pyannulus.allgather(torch.full((2, 3), float(rank)), out=torch.empty(2 * size, 3))
    assert torch.equal(gathered, torch.arange(float(size)).repeat_interleave(2)[:, None].expand(-1, 3)), gathered
    part = pyannulus.reduce_scatter(torch.ones(2 * size), out=torch.empty(2))
    assert (part == size).all()
    rooted = torch.full((4,), float(rank), dtype=torch.bfloat16)
    assert (pyannulus.broadcast(rooted, root=size - 1) == size - 1).all()
    sent = pyannulus.send_async(torch.full((3,), rank), (rank + 1) % size)
    assert (pyannulus.recv(torch.empty(3, dtype=torch.int64), (rank - 1) % size) == (rank - 1) % size).all()
    sent.wait()


def case_gradients_of_a_model(rank, size):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = torch.randn(4 * size, 8)
    (model(data).square().sum() / size).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(data[4 * rank:4 * rank + 4]).square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    pyannulus.allreduce_group(gradients, op="avg", in_place=True)
    for gradient, wanted in zip(gradients, expected):
        torch.testing.assert_close(gradient, wanted)


def case_parts_of_tensors(rank, size):
    whole = torch.full((10, 3), float(rank))
    pyannulus.allreduce(whole[2:5], "max", out=whole[2:5])
    assert (whole[2:5] == size - 1).all() and (whole[:2] == rank).all() and (whole[5:] == rank).all()


def case_unkept_requests(rank, size):
    for _ in range(20):
        pyannulus.allreduce_async(torch.ones(1000), out=torch.empty(1000))
    pyannulus.barrier()


def case_what_is_refused(rank, size):
    good = torch.ones(4, 6)
    refuses(ValueError, "array, a Tensor, cannot be taken by DLPack: Can't export tensors that require gradient", pyannulus.allreduce,
            torch.ones(3, requires_grad=True))
    refuses(ValueError, "array is not C-contiguous (shape (6, 4))", pyannulus.allreduce, good.t())
    refuses(TypeError, "array has the type complex32; Annulus knows", pyannulus.allreduce, torch.empty(3, dtype=torch.complex32))
    refuses(TypeError, "Give out, an array of float32 and shape (4, 6)", pyannulus.allreduce, good)
    refuses(ValueError, "array, a Tensor, cannot be taken by DLPack", pyannulus.allreduce, torch.ones(3, device="meta"))
    refuses(TypeError, "out has dtype float64, array has float32", pyannulus.allreduce, good, out=torch.ones(4, 6, dtype=torch.float64))


if __name__ == "__main__":
    torch.set_num_threads(1)
    array_cases.run(globals())
