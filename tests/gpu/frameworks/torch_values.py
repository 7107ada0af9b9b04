"""What a GPU computes with the back end for PyTorch, with values checked: cases for cases.py. Tensors are
filled by kernels right before the call, in the same stream and behind a kernel that takes long, and are used right after it; the host waits for nothing
in between. DEVICE=cpu tries it without a GPU, where nothing is ordered by streams."""

import contextlib
import os

import torch
import torch.distributed as dist

from torch_rank import TYPES, same, wide

DEVICE = os.environ.get("DEVICE", "cuda")
COUNTS = (1, 1000, 300_001, 16 << 20)  # Numbers of float32.
SPIN = 20_000_000  # Cycles: 10 ms or so.


def spin():
    if DEVICE == "cuda":
        torch.cuda._sleep(SPIN)


@contextlib.contextmanager
def other_stream(made=None):
    """Another current stream, behind what the one before holds, which it joins in the end."""
    if DEVICE == "cpu":
        yield
        return
    before, stream = torch.cuda.current_stream(), made or torch.cuda.Stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


def numbers(rank, count):
    """Small whole numbers, so sums are exact; by kernels."""
    return (torch.arange(count, device=DEVICE) % 97 + 3 * rank).to(torch.float32)


def total(size, count):
    return (torch.arange(count, device=DEVICE) % 97 * size + 3 * (size * (size - 1) // 2)).to(torch.float32)


def small(dtype, rank):
    """Sums and products of a few are exact in every type."""
    return torch.tensor([(index + rank) % 2 + 1 for index in range(500)], dtype=torch.float64).to(dtype)


def case_every_type_and_reduction(rank, size):
    op = dist.ReduceOp
    for dtype in TYPES:
        parts = torch.stack([wide(small(dtype, other)) for other in range(size)])
        wanted = {op.SUM: parts.sum(0), op.PRODUCT: parts.real.prod(0) if parts.is_complex() else parts.prod(0)}
        if not dtype.is_complex:
            wanted |= {op.MIN: parts.min(0).values, op.MAX: parts.max(0).values}
        else:
            del wanted[op.PRODUCT]  # PyTorch refuses it.
        for each, expected in wanted.items():
            if dtype == torch.bool:
                expected = expected != 0
            tensor = small(dtype, rank).to(DEVICE)
            dist.all_reduce(tensor, each)
            same(tensor.cpu(), expected.to(dtype))
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
        for each, combine in ((op.BAND, torch.bitwise_and), (op.BOR, torch.bitwise_or), (op.BXOR, torch.bitwise_xor)):
            expected = small(dtype, 0)
            for other in range(1, size):
                expected = combine(expected, small(dtype, other))
            tensor = small(dtype, rank).to(DEVICE)
            dist.all_reduce(tensor, each)
            same(tensor.cpu(), expected)
    mean = numbers(rank, 1000)
    dist.all_reduce(mean, op.AVG)
    torch.testing.assert_close(mean, total(size, 1000) / size)


def case_order_in_streams(rank, size):
    for asynchronous in (False, True):
        for is_other in (False, True):
            with other_stream() if is_other else contextlib.nullcontext():
                checks = []
                for count in COUNTS:
                    spin()
                    tensor = numbers(rank, count)
                    work = dist.all_reduce(tensor, async_op=asynchronous)
                    if asynchronous:
                        work.wait()
                    checks.append((tensor * 2 != total(size, count) * 2).sum())
                    tensor.fill_(-1)
                assert [check.item() for check in checks] == [0] * len(COUNTS), (asynchronous, is_other, checks)


def case_other_calls(rank, size):
    checks = []
    for count in COUNTS[:3] + (4 << 20,):
        for asynchronous in (False, True):
            def done(work):
                if work is not None:
                    work.wait()
            spin()
            whole = torch.zeros(count * size, device=DEVICE)
            done(dist.all_gather_into_tensor(whole, numbers(rank, count), async_op=asynchronous))
            checks.append((whole != torch.cat([numbers(other, count) for other in range(size)])).sum())
            spin()
            part = torch.zeros(count, device=DEVICE)
            done(dist.reduce_scatter_tensor(part, torch.cat([numbers(rank, count) * (other + 1) for other in range(size)]), async_op=asynchronous))
            checks.append((part != total(size, count) * (rank + 1)).sum())
            spin()
            swapped = torch.zeros(count * size, device=DEVICE)
            done(dist.all_to_all_single(swapped, torch.cat([numbers(rank + other, count) for other in range(size)]), async_op=asynchronous))
            checks.append((swapped != torch.cat([numbers(rank + other, count) for other in range(size)])).sum())
            spin()
            rooted = numbers(rank, count)
            done(dist.broadcast(rooted, size - 1, async_op=asynchronous))
            checks.append((rooted != numbers(size - 1, count)).sum())
            spin()
            reduced = numbers(rank, count)
            done(dist.reduce(reduced, 0, async_op=asynchronous))
            checks.append((reduced != (total(size, count) if rank == 0 else numbers(rank, count))).sum())
            spin()
            strided = torch.zeros(count, 2, device=DEVICE)
            strided[:, 0] = numbers(rank, count)
            done(dist.all_reduce(strided[:, 0], async_op=asynchronous))
            checks.append((strided[:, 0] != total(size, count)).sum() + (strided[:, 1] != 0).sum())
    assert [check.item() for check in checks] == [0] * len(checks), checks


def case_streams_of_the_program(rank, size):
    """Asynchronous calls of four streams, which all fill and use their own tensors; and a second group."""
    second = dist.new_group(list(range(size)))
    streams = [torch.cuda.Stream() if DEVICE == "cuda" else None for _ in range(4)]
    checks = []
    for step in range(10):
        for index, stream in enumerate(streams):
            with other_stream(stream):
                spin() if step % 3 == 0 else None
                tensor = numbers(rank + step, 10_000 * (index + 1))
                work = dist.all_reduce(tensor, group=second if index % 2 else None, async_op=True)
                meanwhile = numbers(0, 1000).sum()  # The stream goes on.
                work.wait()
                checks.append((tensor != total(size, len(tensor)) + 3 * size * step).sum() + (meanwhile != numbers(0, 1000).sum()))
    assert [check.item() for check in checks] == [0] * len(checks), checks
    dist.destroy_process_group(second)


def case_messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    checks = []
    for count in COUNTS[:3] + (2 << 20,):
        spin()
        got = [torch.zeros(count, device=DEVICE) for _ in range(4)]
        batch = [dist.P2POp(dist.irecv, each, before, tag=index) for index, each in enumerate(got)]
        batch += [dist.P2POp(dist.isend, numbers(rank + 7 * index, count), after, tag=index) for index in range(4)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        checks += [(each != numbers(before + 7 * index, count)).sum() for index, each in enumerate(got)]
    assert [check.item() for check in checks] == [0] * len(checks), checks


def case_forgotten_tensors(rank, size):
    """Memory of asynchronous calls whose tensors the program forgets is not given out while they run."""
    checks, works = [], []
    for _ in range(30):
        tensor = numbers(rank, 1 << 20)
        works.append(dist.all_reduce(tensor, async_op=True))
        del tensor
        fresh = torch.full((1 << 20,), 5.0, device=DEVICE)
        checks.append((fresh, fresh + 0))
        if len(checks) == 5:
            for work in works:
                work.wait()
            for pair in checks:
                assert all((each == 5).all() for each in pair)
            checks, works = [], []


def case_objects_and_barriers(rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    tensor = numbers(rank, 1000)
    dist.all_reduce(tensor)
    dist.barrier(device_ids=[0] if DEVICE == "cuda" else None)
    same(tensor.cpu(), total(size, 1000).cpu())

