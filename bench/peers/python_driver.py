#!/usr/bin/python3
"""One rank of a Python package under comparison: python_driver.py annulus|mpi4py SOCKET. Obeys as peer_bench.c does.

Both packages get numpy arrays that exist already, so that the time is the call's. One thread.
"""

import socket
import sys
import time

import numpy

KINDS = {0: "allreduce", 1: "broadcast", 2: "reduce_scatter", 3: "allgather", 4: "iallreduce", 5: "pingpong", 6: "ipingpong",
         7: "sendrecv", 8: "isendrecv"}  # As rounds.KINDS.
PERIOD = 251
PAGE_BYTES = 4096


def zeros(elements):
    """As the drivers in C have their buffers, from the beginning of a page: numpy's own begin 16 bytes behind a line."""
    room = numpy.zeros(elements * 4 + PAGE_BYTES, numpy.uint8)
    begin = -room.ctypes.data % PAGE_BYTES
    return room[begin:begin + elements * 4].view(numpy.float32)


class Annulus:
    def __init__(self):
        import pyannulus  # pylint: disable=import-outside-toplevel
        self.comm = pyannulus.Communicator()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.barrier, self.send, self.recv = self.comm.barrier, self.comm.send, self.comm.recv

    def isend(self, array, peer):
        self.comm.send_async(array, peer).wait()

    def irecv(self, array, peer):
        self.comm.recv_async(array, peer).wait()

    def allreduce(self, send, recv):
        self.comm.allreduce(send, out=recv)

    def iallreduce(self, send, recv):
        self.comm.allreduce_async(send, out=recv).wait()

    def broadcast(self, array, _recv):
        self.comm.broadcast(array, 0)

    def reduce_scatter(self, send, recv):
        self.comm.reduce_scatter(send, out=recv)

    def allgather(self, send, recv):
        self.comm.allgather(send, out=recv)

    def sendrecv(self, send, recv):
        self.comm.sendrecv(send, (self.rank + 1) % self.size, recv, (self.rank - 1) % self.size)

    def isendrecv(self, send, recv):
        received = self.comm.recv_async(recv, (self.rank - 1) % self.size)
        sent = self.comm.send_async(send, (self.rank + 1) % self.size)
        received.wait()
        sent.wait()


class Mpi4py:
    def __init__(self):
        from mpi4py import MPI  # pylint: disable=import-outside-toplevel
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.barrier = self.comm.Barrier

    def send(self, array, peer):
        self.comm.Send(array, peer)

    def recv(self, array, peer):
        self.comm.Recv(array, peer)

    def isend(self, array, peer):
        self.comm.Isend(array, peer).Wait()

    def irecv(self, array, peer):
        self.comm.Irecv(array, peer).Wait()

    def allreduce(self, send, recv):
        self.comm.Allreduce(send, recv)

    def iallreduce(self, send, recv):
        self.comm.Iallreduce(send, recv).Wait()

    def broadcast(self, array, _recv):
        self.comm.Bcast(array, 0)

    def reduce_scatter(self, send, recv):
        self.comm.Reduce_scatter_block(send, recv)

    def allgather(self, send, recv):
        self.comm.Allgather(send, recv)

    def sendrecv(self, send, recv):
        self.comm.Sendrecv(send, (self.rank + 1) % self.size, 0, recv, (self.rank - 1) % self.size)

    def isendrecv(self, send, recv):
        received = self.comm.Irecv(recv, (self.rank - 1) % self.size)
        sent = self.comm.Isend(send, (self.rank + 1) % self.size)
        received.Wait()
        sent.Wait()


class Session:
    def __init__(self, package):
        self.package = package
        self.call = self.send = self.recv = self.to_peer = self.from_peer = None

    def pingpong(self, send, recv):
        peer = self.package.rank ^ 1
        if peer >= self.package.size:
            return
        if self.package.rank % 2 == 0:
            self.to_peer(send, peer)
        self.from_peer(recv, peer)
        if self.package.rank % 2:
            self.to_peer(send, peer)

    def given(self, rank):
        return (rank + numpy.arange(self.send.size) % PERIOD).astype(numpy.float32)

    def expected(self, kind):
        rank, size = self.package.rank, self.package.size
        if kind in ("pingpong", "ipingpong"):
            return self.given(rank ^ 1) if rank ^ 1 < size else numpy.zeros_like(self.recv)
        if kind in ("sendrecv", "isendrecv"):
            return self.given((rank - 1) % size)
        if kind == "broadcast":
            return self.given(0)
        if kind == "allgather":
            return numpy.concatenate([self.given(each) for each in range(size)])
        total = sum(self.given(each) for each in range(size))
        return total[rank * self.recv.size:][:self.recv.size] if kind == "reduce_scatter" else total

    def make_arrays(self, kind, larger):
        """Of `larger` bytes, or a rank's part of as many."""
        size = self.package.size
        part = max(1, larger // 4 // size) if kind in ("reduce_scatter", "allgather") else max(1, larger // 4)
        self.send = zeros(part * size if kind == "reduce_scatter" else part)
        self.recv = self.send if kind == "broadcast" else zeros(part * size if kind == "allgather" else part)

    def case(self, kind, kind_of_element, in_place, larger, _huge, corrupt):
        name = KINDS.get(kind)
        # Broadcasts have one array, and that form alone.
        if name is None or kind_of_element != 0 or bool(in_place) != (name == "broadcast"):
            return "unsupported"
        self.make_arrays(name, larger)
        package = self.package
        # A message of an ipingpong is started and waited for.
        self.to_peer, self.from_peer = (package.isend, package.irecv) if name == "ipingpong" else (package.send, package.recv)
        self.call = self.pingpong if name in ("pingpong", "ipingpong") else getattr(package, name)
        self.send[:] = self.given(self.package.rank)
        self.call(self.send, self.recv)
        self.package.barrier()
        if self.package.rank == 0:
            self.recv[:corrupt] += 1
        wrong = numpy.count_nonzero(self.recv != self.expected(name))
        self.send[:] = 0
        return f"ready 1 {wrong}"

    def run(self, _variant, iterations, batches):
        times = []
        for _ in range(batches):
            self.package.barrier()
            begin = time.perf_counter()
            for _ in range(iterations):
                self.call(self.send, self.recv)
            times.append(f"{time.perf_counter() - begin:.9f}")
        self.package.barrier()
        return "times " + " ".join(times)


def main():
    package = {"annulus": Annulus, "mpi4py": Mpi4py}[sys.argv[1]]()
    session = Session(package)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[2])
        orders, answers = connection.makefile("r"), connection.makefile("w")
        answers.write(f"{package.rank} {package.size}\n")
        answers.flush()
        for line in orders:
            order, *numbers = line.split()
            if order == "quit":
                return 0
            if order in ("case", "run"):
                answers.write(getattr(session, order)(*map(int, numbers)) + "\n")
            else:
                answers.write("freed\n")
            answers.flush()
    return 1


if __name__ == "__main__":
    sys.exit(main())
