"""One rank of the tests of the back end for PyTorch: torch_ranks.py FOLDER RANK SIZE FORM, for its calls (torch_rank.py)."""

import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions

import torch_rank
from torch_rank import TYPES, raises, same, values, wide


def case_all_reduce_of_every_type(rank, size):
    for dtype in TYPES:
        for asynchronous in (False, True):
            tensor = values(dtype, rank)
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if asynchronous:
                work.wait()
                assert not torch_rank.is_compiled() or (work.is_completed() and work.is_success()), dtype
            parts = [values(dtype, other) for other in range(size)]
            expected = torch.stack([wide(part) for part in parts]).sum(0)
            same(tensor, (expected != 0) if dtype == torch.bool else expected.to(dtype))


def case_reductions(rank, size):
    parts = torch.stack([values(torch.int32, other) for other in range(size)])
    for op, expected in ((dist.ReduceOp.SUM, parts.sum(0)), (dist.ReduceOp.PRODUCT, parts.prod(0)), (dist.ReduceOp.MIN, parts.min(0).values),
                         (dist.ReduceOp.MAX, parts.max(0).values)):
        for dtype in (torch.int16, torch.int32, torch.float32):
            tensor = values(dtype, rank)
            dist.all_reduce(tensor, op)
            same(tensor, expected.to(dtype))
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
        for op, combine in ((dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or), (dist.ReduceOp.BXOR, torch.bitwise_xor)):
            tensor = values(dtype, rank)
            expected = values(dtype, 0)
            for other in range(1, size):
                expected = combine(expected, values(dtype, other))
            dist.all_reduce(tensor, op)
            same(tensor, expected)
    mean = values(torch.float32, rank)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    same(mean, parts.to(torch.float32).mean(0))
    scaled = values(torch.float64, rank)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0))
    same(scaled, 2 * parts.to(torch.float64).sum(0))
    # PyTorch's all_reduce refuses such products itself.
    turns = torch.full((3,), 1j if rank == 0 else 2, dtype=torch.complex64)
    dist.reduce(turns, 0, dist.ReduceOp.PRODUCT)
    if rank == 0:
        same(turns, torch.full((3,), 1j * 2 ** (size - 1), dtype=torch.complex64))
    raises("no reduction BAND", dist.all_reduce, torch.ones(2), dist.ReduceOp.BAND)
    raises("no reduction AVG", dist.all_reduce, torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)


def case_premul_sums_of_many_tensors(rank, size):
    """As many operations as a communicator has are neither needed nor lost."""
    backend, options = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")), AllreduceCoalescedOptions()
    options.reduceOp = dist._make_nccl_premul_sum(2.0)
    tensors = [torch.full((3,), float(rank + 1)) for _ in range(70)]
    backend.allreduce_coalesced(tensors, options).wait()
    for tensor in tensors:
        same(tensor, torch.full((3,), float(size * (size + 1))))
    for _ in range(70 if rank == 0 else 0):  # One rank alone, which then corrects its call.
        raises("no reduction PREMUL_SUM", backend.allreduce_coalesced, [torch.ones(2), torch.ones(2, dtype=torch.bool)], options)
    if rank == 0:
        raises("with the factor 0.5, which is no", dist.all_reduce, torch.ones(2, dtype=torch.int32), dist._make_nccl_premul_sum(0.5))
        raises("with the factor 300, which is no", dist.all_reduce, torch.ones(2, dtype=torch.uint8), dist._make_nccl_premul_sum(300.0))
    backend.allreduce_coalesced(tensors[:1], options).wait()
    bytes_of_one = torch.ones(2, dtype=torch.uint8)
    dist.all_reduce(bytes_of_one, dist._make_nccl_premul_sum(255.0))
    same(bytes_of_one, torch.full((2,), 256 - size, dtype=torch.uint8))


def gather_into(tensor, output, root, size):
    """Where the form in Python or an old PyTorch has no gather_single, it is the same call as gather."""
    if torch_rank.is_compiled() and hasattr(dist, "gather_single"):
        dist.gather_single(tensor, output, root)
    else:
        dist.gather(tensor, None if output is None else list(output.chunk(size)), root)


def case_broadcast_and_gathers_of_every_type(rank, size):
    for dtype in TYPES:
        parts = [values(dtype, other) for other in range(size)]
        for root in range(size):
            tensor = values(dtype, rank)
            dist.broadcast(tensor, root)
            same(tensor, parts[root])
            gathered = [torch.zeros(5, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(values(dtype, rank), gathered, root)
            for got, part in zip(gathered or [], parts):
                same(got, part)
            flat = torch.zeros(5 * size, dtype=dtype) if rank == root else None
            gather_into(values(dtype, rank), flat, root, size)
            if rank == root:
                same(flat, torch.cat(parts))
            scattered = torch.zeros(5, dtype=dtype)
            dist.scatter(scattered, parts if rank == root else None, root)
            same(scattered, parts[rank])
        outputs = [torch.zeros(5, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, values(dtype, rank))
        flat = torch.zeros(5 * size, dtype=dtype)
        dist.all_gather_into_tensor(flat, values(dtype, rank))
        for other, part in enumerate(parts):
            same(outputs[other], part)
            same(flat[5 * other:5 * other + 5], part)


def sparse(rank, dtype):
    """Tensors with and without dense dimensions, with an element twice, and without elements on rank 0."""
    rows = torch.tensor([[1, rank, rank], [0, 2, 2]])
    numbers = torch.tensor([1, rank + 1, 2])
    yield torch.sparse_coo_tensor(rows, numbers.to(dtype), (8, 3))
    yield torch.sparse_coo_tensor(rows, torch.stack([numbers, -numbers], 1).to(dtype), (8, 3, 2))
    count = 0 if rank == 0 else 2
    yield torch.sparse_coo_tensor(torch.arange(count).reshape(1, count), torch.arange(1, count + 1).to(dtype), (4,))


def case_sparse_all_reduce(rank, size):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for index, tensor in enumerate(sparse(rank, dtype)):
            expected = sum(list(sparse(other, dtype))[index].to_dense() for other in range(size))
            second = tensor.clone()
            before, after = torch.ones(3), torch.ones(3)
            works = [dist.all_reduce(each, async_op=True) for each in (before, second, after)]
            dist.all_reduce(tensor)
            for work in works:
                work.wait()
            for got in (tensor, second, works[1].get_future().wait()[0]):
                assert got.is_sparse
                same(got.to_dense(), expected)
            same(before, torch.full((3,), float(size)))
            same(after, before)
    raises("only the reduction SUM", dist.all_reduce, torch.eye(2).to_sparse(), dist.ReduceOp.MAX)
    raises("different types or sizes", dist.all_reduce, torch.eye(2 if rank == 0 else 3).to_sparse())
    raises("different types or sizes", dist.all_reduce, torch.eye(2, dtype=torch.float32 if rank == 0 else torch.float64).to_sparse())
    outside = torch.sparse_coo_tensor(torch.tensor([[9 if rank == 0 else 1]]), torch.ones(1), (4,))
    raises("found index 9", dist.all_reduce, outside)
    raises("found index 9", lambda: dist.all_reduce(outside, async_op=True).wait())
    total = torch.eye(2).to_sparse()
    dist.all_reduce(total)
    same(total.to_dense(), size * torch.eye(2))


def case_reduce_and_reduce_scatter(rank, size):
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.int64, torch.complex64):
        total = sum(wide(values(dtype, other)) for other in range(size)).to(dtype)
        for root in range(size):
            tensor = values(dtype, rank)
            dist.reduce(tensor, root)
            same(tensor, total if rank == root else values(dtype, rank))
        lists = [values(dtype, rank) * (other + 1) for other in range(size)]
        output = torch.zeros(5, dtype=dtype)
        dist.reduce_scatter(output, lists)
        same(output, total * (rank + 1))
        output.zero_()
        dist.reduce_scatter_tensor(output, torch.cat(lists))
        same(output, total * (rank + 1))


def case_all_to_all(rank, size):
    for dtype in (torch.float32, torch.int16, torch.bool):
        inputs = [values(dtype, rank + other, 3) for other in range(size)]
        outputs = [torch.zeros(3, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outputs, inputs)
        flat = torch.zeros(3 * size, dtype=dtype)
        dist.all_to_all_single(flat, torch.cat(inputs))
        for other in range(size):
            same(outputs[other], values(dtype, rank + other, 3))
            same(flat[3 * other:3 * other + 3], values(dtype, rank + other, 3))
    # Rank r sends r + 1 rows to each.
    sent = torch.full(((rank + 1) * size, 2), float(rank))
    received = torch.zeros(sum(other + 1 for other in range(size)), 2)
    dist.all_to_all_single(received, sent, [other + 1 for other in range(size)], [rank + 1] * size)
    same(received, torch.cat([torch.full((other + 1, 2), float(other)) for other in range(size)]))


def case_strided_and_empty_tensors(rank, size):
    grid = torch.full((4, 6), float(rank + 1))
    dist.all_reduce(grid[:, ::2])
    total = size * (size + 1) / 2
    expected = torch.full((4, 6), float(rank + 1))
    expected[:, ::2] = total
    same(grid, expected)
    turned = torch.full((3, 2), float(rank)).t()
    dist.broadcast(turned, size - 1)
    same(turned.contiguous(), torch.full((2, 3), float(size - 1)))
    for function in (dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0)):
        function(torch.empty(0))
    parameter = nn.Parameter(torch.full((2, 2), float(rank)).t())
    dist.all_reduce(parameter)
    same(parameter.detach(), torch.full((2, 2), size * (size - 1) / 2).t())


def case_uneven_lists(rank, size):
    outputs = [torch.zeros(other + 1) for other in range(size)]
    own = torch.full((rank + 1,), float(rank))
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).allgather([outputs], [own], AllgatherOptions()).wait()
    for other, got in enumerate(outputs):
        same(got, torch.full((other + 1,), float(other)))


def case_messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(1000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((1000,), float(rank)), after), dist.P2POp(dist.irecv, got, before)]):
        work.wait()
        assert work.is_completed() or not torch_rank.is_compiled()
    same(got, torch.full((1000,), float(before)))
    if rank == 0:
        dist.send(torch.arange(10.0), 1)
    elif rank == 1:
        got = torch.zeros(20)[::2]
        assert dist.recv(got, 0) == 0
        same(got.contiguous(), torch.arange(10.0))
    for tag in (rank, 100) if rank != 0 else ():
        dist.send(torch.tensor([float(rank + tag)]), 0, tag=tag)
    wanted = [(None, 100)] * (size - 1) + [(other, other) for other in range(1, size)] if rank == 0 else []
    senders = []
    for source, tag in wanted:
        if source is None and not torch_rank.is_compiled():
            dist.irecv(got[:1], tag=tag).wait()  # Who sent it, only the compiled form can tell.
            sender = int(got[0]) - tag
        else:
            sender = dist.recv(got[:1], source, tag=tag)
        senders.append(sender)
        assert source in (None, sender) and got[0] == sender + tag, (got[0], sender)
    assert sorted(senders) == sorted(2 * list(range(1, size)) if rank == 0 else [])


def case_objects(rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (100 * rank)})
    assert objects == [{"rank": other, "text": "x" * (100 * other)} for other in range(size)]
    box = [{"from": rank}]
    dist.broadcast_object_list(box, src=1)
    assert box == [{"from": 1}]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert rank or gathered == list(range(size))
    out = [None]
    dist.scatter_object_list(out, list("abcdefgh")[:size] if rank == 0 else None, src=0)
    assert out == ["abcdefgh"[rank]]


def case_futures_may_wait_for_other_calls(rank, size):
    first, second = torch.ones(10), torch.ones(10)

    def then(future):
        dist.all_reduce(second, async_op=True).wait()
        return future.value()[0] + second

    future = dist.all_reduce(first, async_op=True).get_future().then(then)
    same(future.wait(), torch.full((10,), 2.0 * size))


def case_coalesced(rank, size):
    tensors = [values(torch.float32, rank), values(torch.float32, rank, 9)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, sum(values(torch.float32, other, len(tensor)) for other in range(size)))
    import torch.distributed._functional_collectives as functional
    same(functional.all_reduce(values(torch.float32, rank), "sum", dist.group.WORLD) + 0, sum(values(torch.float32, other) for other in range(size)))


def case_groups(rank, size):
    pair = dist.new_group([0, 1])
    alone = dist.new_group([size - 1])
    if rank < 2:
        tensor = torch.full((3,), float(rank + 1))
        dist.all_reduce(tensor, group=pair)
        same(tensor, torch.full((3,), 3.0))
    if rank == size - 1:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=alone)
        same(tensor, torch.ones(3))
    if rank < 2:
        dist.destroy_process_group(pair)


def case_groups_where_the_default_group_has_a_device(rank, size):
    everyone = dist.distributed_c10d._get_default_group()
    everyone.bound_device_id = torch.device("cpu", 0)
    try:
        alone = dist.new_group([size - 1])  # PyTorch then has the other ranks call their back end too.
    finally:
        everyone.bound_device_id = None
    if rank == size - 1:
        dist.all_reduce(torch.ones(3), group=alone)
    dist.barrier()


def case_a_group_may_end_with_work_pending(rank, size):
    group = dist.new_group(list(range(size)))
    if rank == 0:
        dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    dist.destroy_process_group(group)
    dist.barrier()


def case_an_aborted_group_says_so(rank, size):
    group = dist.new_group(list(range(size)))
    if rank == 0:
        group._get_backend(torch.device("cpu")).abort()
    error = raises("abort of the process group", dist.all_reduce, torch.ones(3), group=group)
    assert isinstance(error, dist.DistBackendError)
    work = raises("abort of the process group", dist.all_reduce, torch.ones(3), group=group, async_op=True)
    assert isinstance(work, dist.DistBackendError)
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(1))


def case_split_group(rank, size):
    if not torch_rank.SPLITS_CPU_GROUPS:
        print("not run: this PyTorch does not split groups without a device", flush=True)
        return
    group = dist.split_group(split_ranks=[[0, 1], list(range(2, size))] if size > 2 else [[0, 1]])
    if rank < 2:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((3,), 2.0))


def case_profiles_name_the_calls(rank, size):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4), async_op=True).wait()
        dist.broadcast(torch.ones(4), 0)
    if not torch_rank.is_compiled():
        return
    found = [(event.name, event.input_shapes) for event in profile.events() if event.name.startswith("annulus:")]
    assert found == [("annulus:all_reduce", [[4]])] * 2 + [("annulus:broadcast", [[4]])], found


def case_threads_stay_bounded(rank, size):
    """A thousand asynchronous calls with futures leave a few threads."""
    for _ in range(1000):
        dist.all_reduce(torch.ones(8), async_op=True).get_future().wait()
    names = os.listdir("/proc/self/task")
    assert len(names) < 100, names
    assert threading.active_count() < 20


if __name__ == "__main__":
    torch_rank.run(globals())
