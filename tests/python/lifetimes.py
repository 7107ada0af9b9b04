"""Requests, threads and lifetimes: what is lent stays alive, waiting leaves other threads running, nothing hangs."""

import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import weakref

import numpy as np

import pyannulus

pyannulus.init(timeout_ms=20000)
RANK, SIZE = pyannulus.rank(), pyannulus.size()
SUM = SIZE * (SIZE + 1) // 2


def raises(kind, function, *args):
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def a_request_has_its_result_as_often_as_asked():
    array = np.full(1000, RANK + 1.0)
    requests = [pyannulus.allreduce_async(array) for _ in range(20)]
    results = [request.wait() for request in reversed(requests)]
    assert all((result == SUM).all() for result in results)
    assert requests[0].wait() is results[-1] and requests[0].wait(timeout=0) is results[-1] and requests[0].test()


def a_wait_ends_at_its_timeout_and_may_be_repeated():
    pyannulus.barrier()
    request = None
    if RANK == 0:
        request = pyannulus.barrier_async()
        assert not request.test()
        raises(TimeoutError, request.wait, 0)
        begin = time.monotonic()
        raises(TimeoutError, request.wait, 0.1)
        assert 0.1 <= time.monotonic() - begin < 10
        pyannulus.world().send(np.ones(1), 1)  # Messages go side by side with collectives.
    elif RANK == 1:
        pyannulus.recv(np.zeros(1), 0)
    request = request or pyannulus.barrier_async()
    request.wait()
    assert request.test()


def every_request_takes_the_same_timeouts():
    for dtype in (np.float64, np.complex128):  # The second is not plain.
        request = pyannulus.allreduce_async(np.ones(3, dtype))
        for timeout, kind in (("soon", TypeError), (float("nan"), ValueError)):
            raises(kind, request.wait, timeout)
        for timeout in (float("inf"), 1e300, 10**12, 5, np.float32(5)):
            assert (request.wait(timeout) == SIZE).all()
        assert (request.wait(-1.0) == SIZE).all()


def other_threads_run_while_one_waits():
    """If waiting kept the GIL, the thread that makes the others' call would never get to it."""
    first, second = pyannulus.world().dup(), pyannulus.world().dup()
    results = []

    def use(communicator):
        for _ in range(50):
            results.append(communicator.allreduce(np.full(3, RANK + 1.0))[0])

    threads = [threading.Thread(target=use, args=(each,)) for each in (first, second)]
    threads[RANK % 2].start()  # Even ranks begin with the first, odd ones with the second: each waits for the other.
    while not (RANK % 2 == 0 or threads[1].is_alive() or results):
        pass
    threads[1 - RANK % 2].start()
    for thread in threads:
        thread.join(20)
    assert results == [SUM] * 100


def several_threads_wait_for_one_request():
    pyannulus.barrier()
    array = np.full(100, RANK + 1.0)
    request = pyannulus.allreduce_async(array) if RANK == 0 else None
    results = []
    threads = [threading.Thread(target=lambda: results.append(request.wait()[0])) for _ in range(4 if request else 0)]
    for thread in threads:
        thread.start()
    pyannulus.send(np.ones(1), 1) if RANK == 0 else None
    pyannulus.recv(np.zeros(1), 0) if RANK == 1 else None
    request = request or pyannulus.allreduce_async(array)
    for thread in threads:
        thread.join(20)
    assert request.wait()[0] == SUM and results == [SUM] * len(threads)


def dropped_requests_keep_their_arrays_until_done():
    pyannulus.barrier()
    if RANK == 0:
        arrays = [np.full(100000, 1.0) for _ in range(5)]
        alive = [weakref.ref(array) for array in arrays]
        for array in arrays:
            pyannulus.allreduce_async(array, out=array)  # Nobody keeps the request,
        del arrays, array  # nor the array.
        gc.collect()
        assert all(ref() is not None for ref in alive)
        pyannulus.send(np.ones(1), 1)
    else:
        if RANK == 1:
            pyannulus.recv(np.zeros(1), 0)
        for _ in range(5):
            assert pyannulus.allreduce(np.full(100000, RANK + 1.0))[-1] == SUM
    pyannulus.barrier()
    if RANK == 0:
        pyannulus.barrier_async().wait()
        assert all(ref() is None for ref in alive)
    else:
        pyannulus.barrier()


def numpy_does_not_resize_arrays_that_are_in_use():
    for dtype in (np.float64, np.complex128):
        array = np.ones(10, dtype)
        request = pyannulus.allreduce_async(array, out=array)
        try:
            array.resize(20)
            raise AssertionError("it was resized")
        except ValueError:
            pass
        assert (request.wait() == SIZE).all()
        del request
        array.resize(20)


def requests_outlive_their_communicator_and_may_be_watched():
    communicator = pyannulus.world().dup()
    array = np.ones(10)
    ended, pending = communicator.allreduce_async(array), communicator.recv_async(array, (RANK + 1) % SIZE)
    assert ended.wait()[0] == SIZE
    watched = weakref.ref(ended)
    assert watched() is ended
    raises(TimeoutError, pending.wait, 0.06)
    raises(TimeoutError, pending.wait, 0)
    assert not pending.test()
    waits = []
    thread = threading.Thread(target=lambda: waits.append(raises(pyannulus.Error, pending.wait)))
    thread.start()
    pyannulus.barrier()
    communicator.close()
    thread.join(20)
    for _ in range(2):
        raises(pyannulus.Error, pending.wait)
        raises(pyannulus.Error, pending.test)
    assert ended.wait()[0] == SIZE and len(waits) == 1
    del ended
    assert watched() is None
    pyannulus.barrier()


def closing_ends_the_waits_of_other_threads():
    communicator = pyannulus.world().dup()
    errors = []

    def wait():
        errors.append(raises(pyannulus.Aborted, communicator.barrier))

    if RANK == 0:
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        communicator.close()  # Before, within or after their calls.
        for thread in threads:
            thread.join(20)
        assert len(errors) == 3
    pyannulus.barrier()
    communicator.close()


def signals_are_handled_while_waiting():
    pyannulus.barrier()
    if RANK != 0:
        if RANK == 1:
            pyannulus.recv(np.zeros(1), 0)
        pyannulus.barrier()
        return pyannulus.barrier()
    seen = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    handled = threading.Event()

    def interrupt():
        signal.pthread_kill(main, signal.SIGUSR1)  # A handler that returns does not end the wait.
        while not seen:
            handled.wait(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    raises(KeyboardInterrupt, pyannulus.barrier)
    thread.join(20)
    assert seen == [signal.SIGUSR1]
    pyannulus.send(np.ones(1), 1)  # The barrier goes on, and so does everything after it.
    return pyannulus.barrier()


def a_forked_child_leaves_its_parents_job_alone():
    calls = pyannulus.world().dup().with_options(label="of a communicator that nobody else keeps")
    child = os.fork()
    if child == 0:
        ok = pyannulus.world().closed
        raises(pyannulus.Aborted, pyannulus.barrier)
        raises(pyannulus.Aborted, calls.barrier)
        pyannulus.finalize()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    calls.barrier()
    pyannulus.barrier()


def an_array_is_given_back():
    array = np.ones(10)
    before = sys.getrefcount(array)
    pyannulus.allreduce(array, out=array)
    raises(pyannulus.InvalidArgument, pyannulus.broadcast, array, 99)
    assert sys.getrefcount(array) == before


def joining_can_be_interrupted():
    if RANK != 0:
        return
    interrupted = threading.Event()

    def handle(number, frame):
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt():
        while not interrupted.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with socket.socket() as nobody:  # Bound, but it listens to none.
        nobody.bind(("127.0.0.1", 0))
        signal.signal(signal.SIGINT, handle)
        threading.Thread(target=interrupt).start()
        raises(KeyboardInterrupt, lambda: pyannulus.Communicator(
            rank=1, size=2, local_rank=-1, local_size=-1, rendezvous=f"127.0.0.1:{nobody.getsockname()[1]}"))


for check in (a_request_has_its_result_as_often_as_asked, a_wait_ends_at_its_timeout_and_may_be_repeated,
              every_request_takes_the_same_timeouts, numpy_does_not_resize_arrays_that_are_in_use,
              other_threads_run_while_one_waits, several_threads_wait_for_one_request,
              dropped_requests_keep_their_arrays_until_done, requests_outlive_their_communicator_and_may_be_watched,
              closing_ends_the_waits_of_other_threads, signals_are_handled_while_waiting,
              a_forked_child_leaves_its_parents_job_alone, an_array_is_given_back, joining_can_be_interrupted):
    check()
try:
    pyannulus.barrier()  # All are past their checks, which the first ranks to leave would fail.
    pyannulus.allreduce_async(np.ones(10))  # Pending at exit: that must not hang, nor crash.
except pyannulus.PeerLost:
    pass  # The others have left already.
print("passed")
