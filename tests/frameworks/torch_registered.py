"""One rank of the tests of the back end for PyTorch: torch_registered.py FOLDER RANK SIZE FORM, for tensors that are registered (torch_rank.py).

The bounds are LIMIT bytes and 128 tensors. malloc is told to map large blocks (mallopt), which it otherwise does as long as none was freed."""

import ctypes
import datetime
import os
import random
import re
import threading

import torch
import torch.distributed as dist

import annulus_torch
import torch_rank
from torch_rank import TYPES, same, values, wide

MIB = 1 << 20
LIMIT = 64 * MIB
LEAST = 64 << 10  # Bytes of the smallest tensor that is registered.
M_MMAP_THRESHOLD = -3  # As in malloc.h.
_kept = []  # What is freed in the heap would be given to later tensors, however large they are.


def map_blocks_from(nbytes):
    """Has malloc map blocks of that size and larger, and take smaller ones from its heaps."""
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, nbytes) == 1


def register_up_to(nbytes):
    """To be called before the first group is made."""
    map_blocks_from(LEAST)
    os.environ["TORCH_ANNULUS_REGISTER_BYTES"] = str(nbytes)


def of_heap(make):
    """The tensors that it makes, in memory of malloc's heap."""
    map_blocks_from(32 * MIB)
    try:
        return make()
    finally:
        map_blocks_from(LEAST)


def counts(*names):
    found = annulus_torch.registered()
    return tuple(found[name] for name in names)


def is_registered(tensor):
    """Whether the kernel says that the middle of the tensor's memory is that of a memory file."""
    middle = tensor.data_ptr() + tensor.nbytes // 2
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            if begin <= middle < end:
                return "annulus-registered" in line
    raise AssertionError("no such memory")


def bytes_of_peers():
    """Of registered memory of peers that is mapped here."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        found = re.findall(r"^(\w+)-(\w+) r--s .*annulus-registered", maps.read(), re.MULTILINE)
    return sum(int(end, 16) - int(begin, 16) for begin, end in found)


def uses_until_registered(nbytes):
    return 4 + -(-4 * MIB // nbytes)


def use(tensor, rank, size, times=None, first=0):
    """Sums it over the ranks so often, by default until it is to be registered, and checks the values, which are others each time."""
    for turn in range(first, first + (times or uses_until_registered(tensor.nbytes))):
        tensor.fill_(rank + turn)
        dist.all_reduce(tensor)
        expected = size * (size - 1) // 2 + size * turn
        assert tensor.eq(expected).all(), (turn, tensor, expected)


def case_a_tensor_is_registered_after_some_uses(rank, size):
    tensor, ever = torch.zeros(MIB), counts("ever")
    use(tensor, rank, size, uses_until_registered(tensor.nbytes) - 1)
    assert not is_registered(tensor) and counts("ever") == ever
    use(tensor, rank, size, 1)
    assert is_registered(tensor) and counts("bytes", "tensors", "limit_bytes") == (tensor.nbytes, 1, LIMIT), annulus_torch.registered()
    use(tensor, rank, size, 5)
    # Not only registered, but read by peers where it is.
    assert bytes_of_peers() >= tensor.nbytes - 8192, bytes_of_peers()
    del tensor
    assert counts("bytes", "tensors") == (0, 0)
    use(torch.zeros(100000), rank, size)  # Peers let go of what was freed when they next look.


def case_what_is_not_registered(rank, size):
    """Small tensors, parts of a tensor, memory that is not the usual allocator's, strided tensors."""
    before = counts("ever", "refused", "left_out")
    whole, other = torch.zeros(2 * MIB), bytearray(4 * MIB)
    foreign = torch.frombuffer(other, dtype=torch.float32)
    for tensor in (whole[:MIB], foreign, torch.zeros(LEAST // 4 - 1), torch.zeros(1024, 2048)[:, :1024], torch.zeros(MIB).share_memory_()):
        use(tensor, rank, size, uses_until_registered(tensor.nbytes) + 1)
        assert counts("ever", "refused", "left_out") == before


def case_memory_of_the_heap_is_refused_once(rank, size):
    _kept.extend(of_heap(lambda: [torch.zeros(MIB // 4) for _ in range(8)]))
    before, = counts("refused")
    for tensor in _kept:
        use(tensor, rank, size, 2 * uses_until_registered(tensor.nbytes))
    refused = counts("refused")[0] - before
    assert refused == sum(not is_registered(tensor) for tensor in _kept) and refused > 0


def many_values(dtype, rank):
    return values(dtype, rank, 40).view(torch.uint8).repeat(7500).view(dtype)  # Sums of so small numbers are exact.


def together(tensors):
    return torch.cat([each.view(torch.uint8) for each in tensors]).view(tensors[0].dtype)


def case_all_calls_of_all_types(rank, size):
    """Each call again and again on the same tensors, before and while they are registered, with other values each time."""
    count = 300000
    for dtype in TYPES:
        own, whole = torch.zeros(count, dtype=dtype), torch.zeros(count * size, dtype=dtype)
        parts = list(whole.chunk(size))
        ever, = counts("ever")
        for turn in range(6):
            root, inputs = turn % size, [many_values(dtype, other + turn) for other in range(size)]
            everything = together(inputs)
            total = torch.stack([wide(each) for each in inputs]).sum(0)
            total = (total != 0) if dtype == torch.bool else total.to(dtype)

            def do(call, *args, **named):
                work = call(*args, async_op=turn % 2 == 1, **named)  # pylint: disable=cell-var-from-loop
                if work is not None:
                    work.wait()

            own.copy_(inputs[rank])
            do(dist.all_reduce, own)
            same(own, total)
            own.copy_(inputs[rank])
            do(dist.broadcast, own, root)
            same(own, inputs[root])
            own.copy_(inputs[rank])
            do(dist.reduce, own, root)
            if rank == root:
                same(own, total)
            own.copy_(inputs[rank])
            for gather, output in ((dist.all_gather, parts), (dist.all_gather_into_tensor, whole)):
                whole.zero_()
                do(gather, output, own)
                same(whole, everything)
            whole.zero_()
            do(dist.gather, own, parts if rank == root else None, root)
            same(whole, everything if rank == root else torch.zeros_like(whole))
            whole.copy_(everything)
            own.zero_()
            do(dist.scatter, own, parts if rank == root else None, root)
            same(own, inputs[rank])
            whole.copy_(together([inputs[rank]] * size))
            for scatter, given in ((dist.reduce_scatter, parts), (dist.reduce_scatter_tensor, whole)):
                own.zero_()
                do(scatter, own, given)
                same(own, total)
            received = torch.zeros_like(whole)
            do(dist.all_to_all_single, received, whole)
            same(received, everything)
            do(dist.all_to_all, list(received.chunk(size)), parts)
            same(received, everything)
            messages = [dist.irecv(own, (rank - 1) % size), dist.isend(parts[0], (rank + 1) % size)]
            for work in messages:
                work.wait()
            same(own, inputs[(rank - 1) % size])
        assert counts("ever")[0] - ever >= 2 and is_registered(own) and is_registered(whole), (dtype, annulus_torch.registered())


def case_memory_that_is_freed_and_made_anew(rank, size):
    """At the same address with other content: peers must not read what was there before. On each rank other tensors are freed."""
    choice, places, again, was_registered = random.Random(rank), set(), 0, 0
    tensor = torch.zeros(MIB)
    for turn in range(300):
        if choice.random() < 0.1:
            places.add(tensor.data_ptr())
            was_registered += is_registered(tensor)
            del tensor
            tensor = torch.zeros(MIB)
            again += tensor.data_ptr() in places
            assert not is_registered(tensor)
        use(tensor, rank, size, 1, turn)
    assert again > 0 and was_registered > 0


def case_memory_that_is_resized(rank, size):
    tensor = torch.zeros(MIB)
    for count in (MIB, 2 * MIB, MIB // 2, MIB):
        use(tensor, rank, size)
        assert is_registered(tensor) and counts("tensors") == (1,)
        tensor.untyped_storage().resize_(0)
        assert counts("bytes", "tensors") == (0, 0)
        tensor.untyped_storage().resize_(4 * count)
        tensor = torch.zeros(0).set_(tensor.untyped_storage(), 0, (count,))
        use(tensor, rank, size, 2)
        assert counts("tensors") == (0,)


def case_memory_that_moves_away(rank, size):
    """Into shared memory; to another storage."""
    tensor = torch.zeros(MIB)
    use(tensor, rank, size)
    assert counts("tensors") == (1,)
    tensor.share_memory_()
    assert counts("tensors") == (0,)
    use(tensor, rank, size, 10)
    first, second = torch.zeros(MIB), torch.zeros(MIB)
    use(first, rank, size)
    use(second, rank, size)
    torch.utils.swap_tensors(first, second)
    first.data = torch.ones(5)
    assert counts("tensors") == (1,)
    use(second, rank, size, 3)
    clone = torch._lazy_clone(second)
    del second
    use(clone, rank, size, 3)
    del clone
    assert counts("tensors") == (0,)


def case_the_bounds_hold(rank, size):
    left_out, = counts("left_out")
    tensors = [torch.zeros(4 * MIB) for _ in range(5)]
    for tensor in tensors:
        use(tensor, rank, size, uses_until_registered(tensor.nbytes) + 2)
        assert counts("bytes")[0] <= LIMIT
    assert [is_registered(tensor) for tensor in tensors] == [True] * 4 + [False]
    assert counts("bytes", "tensors", "left_out") == (LIMIT, 4, left_out + 1)
    del tensors[0]
    use(tensors[-1], rank, size, 1)
    assert is_registered(tensors[-1]) and counts("bytes", "tensors") == (LIMIT, 4)
    del tensor, tensors
    many = [torch.zeros(LEAST) for _ in range(140)]  # Some may be of the heap.
    for tensor in many:
        use(tensor, rank, size)
        assert len(os.listdir("/proc/self/fd")) < 300
    assert counts("bytes", "tensors") == (128 * many[0].nbytes, 128) and counts("left_out")[0] > left_out + 1
    del tensor, many
    assert counts("bytes", "tensors") == (0, 0)


def case_not_while_a_call_is_under_way(rank, size):
    """Two calls on one tensor in a row, of which the first cannot end before the others come: nothing is registered until both have ended."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.zeros(4 * MIB)
    use(tensor, rank, size, uses_until_registered(tensor.nbytes) - 2)
    tensor.fill_(rank)
    if rank != 0:
        store.wait(["registered/go"], datetime.timedelta(seconds=100))
    first = dist.all_reduce(tensor, async_op=True)
    second = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        assert not is_registered(tensor)
        store.set("registered/go", "1")
    first.wait()
    second.wait()
    assert tensor.eq(size * size * (size - 1) // 2).all()
    use(tensor, rank, size, 1)
    assert is_registered(tensor)


def case_threads_and_groups(rank, size):
    """Two groups, each used by a thread, whose tensors come and go."""
    groups, failures = [dist.new_group(list(range(size))) for _ in range(2)], []

    def work(group, shift):
        try:
            for turn in range(12):
                tensor = torch.zeros(MIB + shift)
                for step in range(uses_until_registered(tensor.nbytes) + 2):
                    tensor.fill_(rank + step + turn)
                    dist.all_reduce(tensor, group=group)
                    assert tensor.eq(size * (size - 1) // 2 + size * (step + turn)).all()
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=work, args=(group, 1000 * index)) for index, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert counts("tensors") == (0,)
    for group in groups:
        dist.destroy_process_group(group)


def in_threads(number, function):
    """The results. Threads that are there at the same time have heaps of their own, which malloc makes by mapping memory."""
    results, all_here = [], threading.Barrier(number)

    def run():
        all_here.wait(100)
        results.append(function())
        all_here.wait(100)

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def case_a_forked_child_frees_what_is_its_parents(rank, size):
    """Of mapped blocks and of a thread's heap, where what is freed is given out again."""
    tensors = {"mapped": torch.zeros(MIB), "of_heap": of_heap(lambda: in_threads(1, lambda: torch.zeros(MIB)))[0]}
    for tensor in tensors.values():
        use(tensor, rank, size)
        assert is_registered(tensor)
        tensor.fill_(rank + 0.5)
    child = os.fork()
    if child == 0:
        assert all(tensor.eq(rank + 0.5).all() for tensor in tensors.values())
        tensors.clear()
        del tensor
        torch.set_num_threads(1)  # PyTorch makes its pool of threads anew in a child, which threads must not do all at once ("Invalid thread pool!").
        garbage = [torch.full((MIB,), 7.0) for _ in range(4)] + of_heap(lambda: in_threads(20, lambda: [torch.full((MIB // 4,), 7.0) for _ in range(6)]))
        os._exit(0 if len(garbage) == 24 else 1)
    assert os.waitpid(child, 0) == (child, 0)
    for tensor in tensors.values():
        assert is_registered(tensor) and tensor.eq(rank + 0.5).all()
        use(tensor, rank, size, 3)


class Inherited(torch.utils.data.Dataset):
    """Rows of tensors that its process has made, one of which a worker frees."""

    def __init__(self, rows, freed):
        self.rows, self.freed = rows, freed

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.freed = None
        torch.full((MIB,), 7.0)
        return self.rows[index]


def case_workers_of_a_data_loader(rank, size):
    rows, freed = torch.zeros(64, 16384), torch.zeros(MIB)
    for tensor in (rows.view(-1), freed):
        use(tensor, rank, size)
    rows.copy_(torch.arange(64).unsqueeze(1).expand(64, 16384))
    freed.fill_(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16384, 16, bias=False))
    for _ in range(2):
        got = []
        for batch in torch.utils.data.DataLoader(Inherited(rows, freed), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            got.append(batch[:, 0])
            model(batch).sum().backward()
        same(torch.cat(got), torch.arange(64.0))
        assert freed.eq(3).all() and is_registered(freed)
    both = [torch.zeros_like(model.module.weight.grad) for _ in range(size)]
    dist.all_gather(both, model.module.weight.grad)
    for each in both:
        same(each, both[0])


if __name__ == "__main__":
    register_up_to(LIMIT)
    torch_rank.run(globals())
