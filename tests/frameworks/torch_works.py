"""One rank of the tests of the back end for PyTorch: torch_works.py FOLDER RANK SIZE FORM, for works: what asynchronous calls return (torch_rank.py).

Where one rank is to be late, it waits for a key that another one puts into the store; so what happens meanwhile is no matter of luck."""

import datetime
import os
import random
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist

import torch_rank
from torch_rank import raises, same

_keys = iter(range(1 << 30))


def store():
    return dist.distributed_c10d._get_default_store()


def new_key():
    """The same on all ranks, which must all ask for it."""
    return f"torch_works/{next(_keys)}"


def everyone(rank, size, group=None):
    """A work of a call that rank 0 makes at once, and the others only after go(). Returns (work, tensor, go)."""
    key, tensor = new_key(), torch.full((8,), float(rank + 1))
    if rank != 0:
        store().wait([key], datetime.timedelta(seconds=100))
    work = dist.all_reduce(tensor, async_op=True, group=group)
    return work, tensor, lambda: store().set(key, "1")


def total(size):
    return torch.full((8,), size * (size + 1) / 2)


def in_thread(function, *args):
    """Runs it in a thread; the result of the returned function is its outcome: a value or an exception."""
    outcomes = []

    def run():
        try:
            outcomes.append(function(*args))
        except Exception as error:  # pylint: disable=broad-except
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(100)
        assert outcomes, "the thread does not end"
        return outcomes[0]

    return join


def until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.001)


def switches():
    """How often each other thread of this process has gone to sleep, by thread."""
    counts = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status", encoding="ascii") as status:
            counts[thread] = int(next(line for line in status if line.startswith("voluntary_ctxt_switches")).split()[1])
    counts.pop(str(threading.get_native_id()))
    return counts


def case_a_waiter_needs_no_other_thread(rank, size):
    """No other thread goes to sleep and wakes again for each call: those of Annulus look by themselves, every 200 us at the most."""
    calls, tensor = 4000, torch.zeros(1)
    for _ in range(10):
        dist.all_reduce(tensor, async_op=True).wait()
    before, begin = switches(), time.monotonic()
    for _ in range(calls):
        dist.all_reduce(tensor, async_op=True).wait()
    looks = (time.monotonic() - begin) * 1000
    slept = sorted(count - before.get(thread, 0) for thread, count in switches().items())
    # The two are the progress thread and that of callbacks, which looks less often. In Python the latter does wake the waiter.
    assert not torch_rank.is_compiled() or slept[-2] < calls / 4 + looks, (slept, looks)


def case_several_threads_wait_for_one_work(rank, size):
    for _ in range(30):
        work, tensor, go = everyone(rank, size)
        joins = [in_thread(work.wait) for _ in range(4)]
        go()
        work.wait()
        assert [join() for join in joins] == [True] * 4
        same(tensor, total(size))


def case_a_future_and_a_wait(rank, size):
    for asks_first in (True, False):
        for _ in range(20):
            work, tensor, go = everyone(rank, size)
            called = []
            if asks_first:
                future = work.get_future().then(lambda done: called.append(1) or done.value()[0] + 0)  # pylint: disable=cell-var-from-loop
            go()
            work.wait()
            same(tensor, total(size))
            if not asks_first:
                future = work.get_future().then(lambda done: called.append(1) or done.value()[0] + 0)  # pylint: disable=cell-var-from-loop
            same(future.wait(), total(size))
            assert called == [1]


def case_a_future_alone(rank, size):
    work, _, go = everyone(rank, size)
    future = work.get_future()
    go()
    same(future.wait()[0], total(size))
    work.wait()


def case_asking_is_enough(rank, size):
    for _ in range(30):
        wide = torch.zeros(8, 2)
        wide[:, 0] = rank + 1
        work = dist.all_reduce(wide[:, 0], async_op=True)
        if torch_rank.is_compiled():
            until(work.is_completed)
            assert work.is_success() and len(work.result()) == 1
        else:
            work.wait()
        same(wide[:, 0].contiguous(), total(size))


def case_works_in_inference_mode(rank, size):
    for waits_first in (True, False):
        with torch.inference_mode():
            wide = torch.zeros(8, 2)
            wide[:, 0] = rank + 1
            work = dist.all_reduce(wide[:, 0], async_op=True)
            if not waits_first:
                work.get_future().wait()  # Another thread ends the call.
            work.wait()
            same(wide[:, 0].contiguous(), total(size))


def case_asking_lets_other_threads_run(rank, size):
    """A thread that takes turns with this one whenever this one lets go of Python's lock, runs within a question."""
    work, _, go = everyone(rank, size)
    turns, ends = [0], []

    def take_turns():
        while not ends:
            turns[0] += 1
            time.sleep(0)

    def ran_meanwhile():
        before = turns[0]
        work.is_completed()
        return turns[0] != before

    join = in_thread(take_turns)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    if rank == 0 and torch_rank.is_compiled():
        time.sleep(0.1)
        until(ran_meanwhile)
    sys.setswitchinterval(interval)
    ends.append(True)
    join()
    go()
    work.wait()


def case_a_dropped_work_ends_and_lets_its_tensors_go(rank, size):
    wides, refs = [], []
    for _ in range(50):
        wide, tensor = torch.zeros(8, 2), torch.full((8,), float(rank + 1))
        wide[:, 0] = rank + 1
        refs.append(weakref.ref(tensor))
        wides.append(wide)
        dist.all_reduce(wide[:, 0], async_op=True)
        dist.all_reduce(tensor, async_op=True)
        del tensor
    until(lambda: all(torch.equal(wide[:, 0], total(size)) for wide in wides))
    until(lambda: not any(ref() is not None for ref in refs))


def case_a_wait_may_time_out_and_come_again(rank, size):
    work, tensor, go = everyone(rank, size)
    if rank == 0:
        begin = time.monotonic()
        raises("timed out" if torch_rank.is_compiled() else "not done after a timeout", work.wait, datetime.timedelta(milliseconds=30))
        assert time.monotonic() - begin >= 0.03
        assert not torch_rank.is_compiled() or not work.is_completed()
    go()
    work.wait(datetime.timedelta(seconds=100))
    same(tensor, total(size))


def case_an_abort_ends_a_wait(rank, size):
    group = dist.new_group(list(range(size)))
    if rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True, group=group)
        join = in_thread(work.wait)
        group._get_backend(torch.device("cpu")).abort()
        error = join()
        assert "abort of the process group" in str(error) and isinstance(error, dist.DistBackendError), error
        raises("abort of the process group", work.wait)
    dist.barrier()
    dist.destroy_process_group(group)


def case_an_aborted_group_lets_go_of_what_it_has(rank, size):
    def threads():
        return len(os.listdir("/proc/self/task"))

    dist.barrier()
    before = threads()
    group = dist.new_group(list(range(size)))
    assert threads() > before
    group._get_backend(torch.device("cpu")).abort()
    dist.distributed_c10d._abort_process_group(group)
    del group
    until(lambda: threads() <= before)
    dist.barrier()


def case_a_group_may_end_while_a_thread_waits(rank, size):
    for _ in range(5):
        group = dist.new_group(list(range(size)))
        if rank == 0:
            work = dist.all_reduce(torch.ones(4), async_op=True, group=group)
            join = in_thread(work.wait)
            dist.destroy_process_group(group)
            assert isinstance(join(), RuntimeError)
            assert not torch_rank.is_compiled() or work.is_completed()
        dist.barrier()
        if rank != 0:
            dist.destroy_process_group(group)


def case_a_group_may_be_shut_down_while_a_thread_is_in_a_call(rank, size):
    for delay in (0, 0, 0.001, 0.01, 0.2):
        group = dist.new_group(list(range(size)))
        if rank == 0:
            join = in_thread(lambda joined=group: dist.all_reduce(torch.ones(4), group=joined))
            time.sleep(delay)
            group._get_backend(torch.device("cpu")).shutdown()
            error = join()
            assert isinstance(error, dist.DistBackendError) and "shut down" in str(error), error
            raises("the process group was shut down", dist.all_reduce, torch.ones(4), group=group)
        dist.barrier()
        dist.destroy_process_group(group)


def case_a_work_may_outlive_its_group(rank, size):
    group = dist.new_group(list(range(size)))
    tensor = torch.full((8,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True, group=group)
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    work.wait()
    same(tensor, total(size))
    same(work.get_future().wait()[0], total(size))


def case_a_forked_child_leaves_works_alone(rank, size):
    group = dist.new_group(list(range(size)))
    work, tensor, go = everyone(rank, size, group)
    if rank == 0:
        join = in_thread(work.wait)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for asynchronous in (False, True):
                    raises("a forked child cannot use", dist.all_reduce, torch.ones(1), async_op=asynchronous)
                if torch_rank.is_compiled():
                    assert not work.is_completed()
                    dist.destroy_process_group(group)
                status = 0
            finally:
                os._exit(status)
        until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0))
        go()
        assert join() is True
    work.wait()
    same(tensor, total(size))
    dist.barrier()
    dist.destroy_process_group(group)


def case_works_may_be_waited_for_in_any_order(rank, size):
    for order in (reversed, list):
        tensors = [torch.full((count,), float(rank + 1)) for count in range(1, 40)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in order(works):
            work.wait()
        for tensor in tensors:
            same(tensor, torch.full_like(tensor, size * (size + 1) / 2))


def case_messages_in_both_directions(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1, 1000, 100000):
        for _ in range(20):
            got = torch.zeros(count)
            works = [dist.irecv(got, before), dist.isend(torch.full((count,), float(rank)), after)]
            for work in works:
                work.wait()
            same(got, torch.full((count,), float(before)))


def case_works_of_every_use_at_once(rank, size):
    """All ranks make the same calls; what each does with its works is its own choice."""
    choice = random.Random(rank)
    open_works = []

    def end(tensor, work):
        use = choice.choice(["wait", "future", "ask", "thread", "drop"])
        if use == "future":
            work.get_future().wait()
        elif use == "ask" and torch_rank.is_compiled():
            until(work.is_completed)
        elif use == "thread":
            assert in_thread(work.wait)() is True
        elif use == "drop":
            del work
            until(lambda: tensor[0] == size * (size + 1) / 2)
            return
        else:
            work.wait()
        same(tensor, torch.full_like(tensor, size * (size + 1) / 2))

    for turn in range(300):
        tensor = torch.full((1 + turn * 7 % 500,), float(rank + 1))
        open_works.append((tensor, dist.all_reduce(tensor, async_op=True)))
        while len(open_works) > choice.randrange(6):
            end(*open_works.pop(choice.randrange(len(open_works))))
    for tensor, work in open_works:
        end(tensor, work)


if __name__ == "__main__":
    torch_rank.run(globals())
