#!/usr/bin/python3
"""bench/peers/python_driver.py without its packages: what it does with a communicator that passes messages in this process. For
Debian's Python, which has numpy."""

import os
import queue
import sys
import threading
import unittest

import numpy

sys.dont_write_bytecode = True
ROOT = os.path.abspath(os.path.join(os.environ.get("TEST_SRCDIR", "."), os.environ.get("TEST_WORKSPACE", ".")))
sys.path.insert(0, os.path.join(ROOT, "bench/peers"))

import python_driver  # noqa: E402
import rounds  # noqa: E402


class Ended:
    """A request of either package: `end` is called when it is waited for."""

    def __init__(self, end):
        self.wait = self.Wait = end


class Messages:
    """Stands for a communicator of either package: one of two ranks, in threads of one process."""

    def __init__(self, rank, ways):
        self.rank, self.size = rank, 2
        self.out, self.into = ways[rank], ways[1 - rank]
        self.started = 0
        self.Send, self.Recv = self.send, self.recv  # Of mpi4py.
        self.Isend, self.Irecv, self.Barrier = self.send_async, self.recv_async, self.barrier
        self.Bcast, self.Allgather, self.Reduce_scatter_block = self.broadcast, self.allgather, self.reduce_scatter

    def send(self, array, _peer):
        self.out.put(array.copy())

    def recv(self, array, _peer):
        array[:] = self.into.get(timeout=60)

    def barrier(self):
        pass

    def broadcast(self, array, root):
        if self.rank == root:
            self.send(array, 1 - root)
        else:
            self.recv(array, root)

    def both(self, array):
        """The arrays of both ranks."""
        self.out.put(array.copy())
        other = self.into.get(timeout=60)
        return (array, other) if self.rank == 0 else (other, array)

    def allgather(self, array, out):
        out[:] = numpy.concatenate(self.both(array))

    def reduce_scatter(self, array, out):
        out[:] = sum(self.both(array)).reshape(2, -1)[self.rank]

    def send_async(self, array, peer):
        self.started += 1
        self.send(array, peer)
        return Ended(lambda: None)

    def recv_async(self, array, peer):
        self.started += 1
        return Ended(lambda: self.recv(array, peer))


class PythonDriverTest(unittest.TestCase):
    def test_its_calls_have_the_numbers_of_all_drivers(self):
        self.assertEqual(python_driver.KINDS, {rounds.KINDS[name]: name for name in python_driver.KINDS.values()})

    def play(self, package, kind, in_place=0):
        """The two ranks' answers to an order for a case of eight elements, and how many messages each started."""
        ways = queue.SimpleQueue(), queue.SimpleQueue()
        answers, comms = [None, None], [Messages(rank, ways) for rank in range(2)]

        def play_one(rank):
            made = package.__new__(package)
            made.comm, made.rank, made.size = comms[rank], rank, 2
            made.barrier = comms[rank].barrier
            if package is python_driver.Annulus:
                made.send, made.recv = comms[rank].send, comms[rank].recv
            answers[rank] = python_driver.Session(made).case(rounds.KINDS[kind], 0, in_place, 32, 0, 0)

        threads = [threading.Thread(target=play_one, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers, [comm.started for comm in comms]

    def test_messages_of_a_ping_pong_arrive_and_are_started_where_they_should_be(self):
        for package in (python_driver.Annulus, python_driver.Mpi4py):
            for kind, started in (("pingpong", 0), ("ipingpong", 2)):
                with self.subTest(package=package.__name__, kind=kind):
                    self.assertEqual(self.play(package, kind), (["ready 1 0"] * 2, [started] * 2))

    def test_collectives_have_the_results_of_their_kind_in_the_form_that_they_have(self):
        for package in (python_driver.Annulus, python_driver.Mpi4py):
            for kind in ("broadcast", "reduce_scatter", "allgather"):
                has_one_array = int(kind == "broadcast")
                with self.subTest(package=package.__name__, kind=kind):
                    self.assertEqual(self.play(package, kind, has_one_array)[0], ["ready 1 0"] * 2)
                    self.assertEqual(self.play(package, kind, 1 - has_one_array)[0], ["unsupported"] * 2)


if __name__ == "__main__":
    unittest.main()
