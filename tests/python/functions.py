"""Functions that the library calls, callbacks and reductions: when they run, what they may do, and that they are let go of."""

import faulthandler
import gc
import os
import sys
import threading
import time
import weakref

import numpy as np

import pyannulus

pyannulus.init(timeout_ms=20000)
RANK, SIZE = pyannulus.rank(), pyannulus.size()


def raises(kind, function, *args):
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def is_collected(reference):
    gc.collect()
    return reference() is None


def callbacks_run_once_each_and_may_use_the_communicator():
    with pyannulus.world().dup() as communicator:
        seen, over = [], threading.Event()

        def done(status):
            seen.append(status)
            try:
                communicator.close()
            except RuntimeError as refused:
                seen.append("cannot close its communicator" in str(refused))
            # Waits for another call, as frameworks do: every rank makes it.
            seen.append(communicator.allreduce(np.ones(1))[0])
            over.set()

        request = communicator.with_options(done=done).allreduce_async(np.ones(3))
        assert over.wait(20) and request.test()
        assert seen == [pyannulus.Status.OK, True, SIZE], seen
        grouped, twice = [], threading.Event()
        calls = communicator.with_options(done=lambda status: (grouped.append(status), twice.set()))
        calls.allreduce_group([np.ones(2), np.ones(3), np.ones(4, np.int32)])
        assert twice.wait(20)
        communicator.barrier()
    assert grouped == [pyannulus.Status.OK], grouped  # Once for the group.


def a_callback_hears_of_failures_and_what_it_raises_is_reported():
    communicator = pyannulus.world().dup()
    ended, reported = [], threading.Event()

    def done(status):
        ended.append(status)
        raise KeyError("from a callback")

    sys.unraisablehook = lambda raised: reported.set() if raised.exc_type is KeyError else None
    request = communicator.with_options(done=done).recv_async(np.ones(1), (RANK + 1) % SIZE)
    pyannulus.barrier()
    communicator.abort("so that it ends")
    assert isinstance(raises(pyannulus.Aborted, request.wait), pyannulus.Error)
    assert reported.wait(20) and ended == [pyannulus.Status.ABORTED], ended
    sys.unraisablehook = sys.__unraisablehook__
    communicator.close()
    pyannulus.barrier()


def closing_calls_the_callbacks_that_remain():
    communicator = pyannulus.world().dup()
    ended = []

    def done(status):
        raises(RuntimeError, communicator.close)
        ended.append((status, raises(pyannulus.Error, communicator.barrier).scope))

    calls = communicator.with_options(done=done)
    requests = [calls.recv_async(np.ones(1), (RANK + 1) % SIZE) for _ in range(3)]
    pyannulus.barrier()
    communicator.close()
    failed = pyannulus.Status.ABORTED, pyannulus.Status.PEER_LOST  # Others may have left before this rank.
    assert [status in failed for status, _ in ended] == [True] * 3, ended
    assert all(scope is pyannulus.Scope.COMMUNICATOR for _, scope in ended), ended
    assert all(raises(pyannulus.Error, request.wait) for request in requests)
    pyannulus.barrier()


def the_last_reference_to_a_communicator_may_go_in_a_callback():
    class Holder:
        def __init__(self):
            self.communicator = pyannulus.world().dup()
            self.gone = threading.Event()
            weakref.finalize(self, self.gone.set)

        def __call__(self, status):
            assert status == pyannulus.Status.OK

    def threads():
        return len(os.listdir("/proc/self/task"))

    pyannulus.barrier()
    before = threads()
    holder = Holder()
    gone = holder.gone
    holder.communicator.with_options(done=holder).barrier_async()
    del holder
    assert gone.wait(20)
    deadline = time.monotonic() + 20
    while threads() > before and time.monotonic() < deadline:  # Its threads end with it.
        time.sleep(0.001)
    assert threads() <= before
    pyannulus.barrier()


class Listener:
    """Has calls whose callback it is."""

    def __init__(self, communicator):
        self.heard = []
        self.calls = communicator.with_options(done=self.hear)

    def hear(self, status):
        self.heard.append(status)


def a_callback_that_refers_to_its_calls_is_collected_with_them():
    with pyannulus.world().dup() as communicator:
        listener = Listener(communicator)
        listener.calls.barrier()
        listener.calls.allreduce_group([np.ones(2), np.ones(3)])
        until(lambda: len(listener.heard) == 2)
        alive = weakref.ref(listener)
        del listener
        until(lambda: is_collected(alive))  # Its thread may still be about to let go of the last callback.


def a_callback_stays_as_long_as_its_calls():
    with pyannulus.world().dup() as communicator:
        listener = Listener(communicator)
        heard, calls = listener.heard, listener.calls
        del listener
        gc.collect()
        calls.barrier()
        until(lambda: len(heard) == 1)
        described = calls._calls.barrier()
        del calls
        gc.collect()  # The call has the options still.
        communicator._core.submit([described]).wait(-1)
        until(lambda: len(heard) == 2)


def what_a_reduction_raised_is_collected_with_it():
    class Sum:
        def __init__(self, communicator):
            self.op = communicator.reduction(self.add)

        def add(self, left, right, out):
            raise KeyError("from a function")

    communicator = pyannulus.world().dup()
    total = Sum(communicator)
    alive = weakref.ref(total), weakref.ref(total.op)
    raises((KeyError, pyannulus.Error), communicator.allreduce, np.ones(SIZE), total.op)
    communicator.close()
    del total
    assert all(is_collected(each) for each in alive)
    pyannulus.barrier()


def finalizing_in_a_callback_is_refused_and_loses_nothing():
    refused, over = [], threading.Event()

    def done(status):
        refused.append((status, raises(RuntimeError, pyannulus.finalize)))
        over.set()

    pyannulus.with_options(done=done).barrier()
    assert over.wait(20) and refused[0][0] == pyannulus.Status.OK and "cannot close" in str(refused[0][1]), refused
    assert pyannulus.is_initialized()
    pyannulus.barrier()


def a_reduction_is_let_go_of_when_nothing_uses_it():
    class Sum:
        def __call__(self, left, right, out):
            np.add(left, right, out)

    with pyannulus.world().dup() as communicator:
        functions = [Sum(), Sum()]
        alive = [weakref.ref(function) for function in functions]
        ops = [communicator.reduction(function) for function in functions]
        del functions
        request = communicator.allreduce_async(np.ones(3), ops[0])
        ops[0].destroy()  # The queued call still uses it.
        assert request.wait()[0] == SIZE
        communicator.barrier()
        assert alive[0]() is None and alive[1]() is not None
    assert alive[1]() is None


def closing_waits_for_a_reduction_and_no_thread_waits_for_closing_with_the_gil():
    communicator = pyannulus.world().dup()
    inside, go_on = threading.Event(), threading.Event()

    def add(left, right, out):
        inside.set()
        go_on.wait(20)
        np.add(left, right, out)

    reduced, received = np.ones(10 * SIZE), np.ones(1)
    alive = [weakref.ref(reduced), weakref.ref(received)]
    message = communicator.recv_async(received, (RANK + 1) % SIZE)
    request = communicator.allreduce_async(reduced, communicator.reduction(add))
    assert inside.wait(20)
    pyannulus.barrier()
    # A deadlock would hold the GIL: then this ends the process all the same.
    faulthandler.dump_traceback_later(15, exit=True)
    closer = threading.Thread(target=communicator.close)
    closer.start()
    while not communicator.closed:
        time.sleep(0.001)
    raises(pyannulus.Aborted, communicator.premul_sum, 2.0)
    raises(pyannulus.Aborted, communicator.allreduce_group_async, [np.ones(1)])
    # Until it is over the library uses the arrays: of requests that nobody keeps, and where somebody closes it again.
    second = threading.Thread(target=communicator.close)
    second.start()
    second.join(0.1)
    del message, reduced, received
    assert second.is_alive() and all(ref() is not None for ref in alive)
    go_on.set()
    for thread in (closer, second):
        thread.join(20)
    faulthandler.cancel_dump_traceback_later()
    assert not closer.is_alive() and not second.is_alive() and all(ref() is None for ref in alive)
    raises(pyannulus.Aborted, request.wait)


def a_reduction_may_not_use_its_communicator_and_does_not_wait_for_it():
    communicator = pyannulus.world().dup()
    inside, go_on, refused = threading.Event(), threading.Event(), []
    uses = (communicator.counters, communicator.memory, communicator.device, communicator.verdict, communicator.abort, communicator.dup,
            lambda: communicator.split(0), lambda: communicator.premul_sum(2.0), lambda: communicator.reduction(np.add), communicator.barrier,
            communicator.barrier_async)

    def add(left, right, out):
        inside.set()
        go_on.wait(20)
        if not refused:
            refused.extend(raises(ValueError, use) for use in uses)
        np.add(left, right, out)

    sums = communicator.reduction(add)
    request = communicator.allreduce_async(np.ones(10 * SIZE), sums)
    assert inside.wait(20)
    go_on.set()
    assert (request.wait() == SIZE).all() and pyannulus.verdict() is None
    assert all("must not use its communicator" in str(error) for error in refused), refused
    pyannulus.barrier()
    # The same while another thread closes it, and waits for the function.
    for event in (inside, go_on):
        event.clear()
    refused.clear()
    request = communicator.allreduce_async(np.ones(10 * SIZE), sums)
    assert inside.wait(20)
    pyannulus.barrier()
    faulthandler.dump_traceback_later(30, exit=True)
    closer = threading.Thread(target=communicator.close)
    closer.start()
    while not communicator.closed:
        time.sleep(0.001)
    go_on.set()
    closer.join(20)
    assert not closer.is_alive() and len(refused) == len(uses)
    faulthandler.cancel_dump_traceback_later()
    pyannulus.barrier()


def a_good_request_stays_good_when_its_function_fails_later():
    fails = []

    def add(left, right, out):
        if fails:
            raise KeyError("from a function")
        np.add(left, right, out)

    communicator = pyannulus.world().dup()
    op = communicator.reduction(add)
    good = communicator.allreduce_async(np.ones(SIZE), op)
    assert (good.wait() == SIZE).all()
    fails.append(True)
    bad = communicator.allreduce_async(np.ones(SIZE), op)
    for _ in range(2):
        raises((KeyError, pyannulus.Error), bad.wait)
        assert (good.wait() == SIZE).all() and good.test()
    communicator.close()
    pyannulus.barrier()


for check in (callbacks_run_once_each_and_may_use_the_communicator,
              a_callback_hears_of_failures_and_what_it_raises_is_reported, closing_calls_the_callbacks_that_remain,
              the_last_reference_to_a_communicator_may_go_in_a_callback,
              a_callback_that_refers_to_its_calls_is_collected_with_them, a_callback_stays_as_long_as_its_calls,
              what_a_reduction_raised_is_collected_with_it, finalizing_in_a_callback_is_refused_and_loses_nothing,
              a_reduction_is_let_go_of_when_nothing_uses_it,
              closing_waits_for_a_reduction_and_no_thread_waits_for_closing_with_the_gil,
              a_reduction_may_not_use_its_communicator_and_does_not_wait_for_it,
              a_good_request_stays_good_when_its_function_fails_later):
    check()
pyannulus.barrier()
print("passed")
