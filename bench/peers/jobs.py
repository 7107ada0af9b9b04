"""A library's ranks: started once, given one case after the other, idle in between (peer_bench.c has the protocol)."""

import os
import signal
import socket
import struct
import subprocess
import time

START_S = 60
ANSWER_S = 120
STOP_S = 5


class JobFailed(Exception):
    """A rank ended, or did not answer in time."""


class Job:
    def __init__(self, library, ranks, folder):
        self.library = library
        self.name = library.name
        self.ranks = ranks
        self.path = os.path.join(folder, f"{self.name}.sock")
        self.log_path = os.path.join(folder, f"{self.name}.log")
        self.launchers = []
        self.connections = {}
        self.pids = []
        self.buffers = {}

    def start(self):
        with socket.socket(socket.AF_UNIX) as listener, open(self.log_path, "wb") as log:
            listener.bind(self.path)
            listener.listen(self.ranks)
            for command, environment in self.library.commands(self.path):
                self.launchers.append(subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log,
                                                       stdin=subprocess.DEVNULL, start_new_session=True))
            self._accept(listener)
        os.unlink(self.path)

    def _accept(self, listener):
        deadline = time.monotonic() + START_S
        listener.settimeout(0.2)
        while len(self.connections) < self.ranks:
            if time.monotonic() > deadline:
                raise JobFailed(f"{self.name}: {len(self.connections)} of {self.ranks} ranks came\n{self.log()}")
            if any(launcher.poll() not in (None, 0) for launcher in self.launchers):
                raise JobFailed(f"{self.name}: did not start\n{self.log()}")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            self.pids.append(pid)
            self.buffers[connection] = b""
            rank, size = map(int, self._line(connection, deadline).split())
            if size != self.ranks or rank in self.connections:
                raise JobFailed(f"{self.name}: rank {rank} of {size} came, of {self.ranks} that were started")
            self.connections[rank] = connection

    def log(self):
        """The end of what the ranks wrote."""
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as opened:
                return "".join(opened.readlines()[-15:])
        except OSError:
            return ""

    def _line(self, connection, deadline):
        while b"\n" not in self.buffers[connection]:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                received = connection.recv(65536)
            except OSError as error:
                raise JobFailed(f"{self.name}: no answer ({error})\n{self.log()}") from error
            if not received:
                raise JobFailed(f"{self.name}: a rank ended\n{self.log()}")
            self.buffers[connection] += received
        line, _, self.buffers[connection] = self.buffers[connection].partition(b"\n")
        return line.decode()

    def ask(self, order):
        """Gives all ranks the order and returns their answers, by rank."""
        deadline = time.monotonic() + ANSWER_S
        try:
            for connection in self.connections.values():
                connection.sendall(order.encode() + b"\n")
        except OSError as error:
            raise JobFailed(f"{self.name}: a rank ended ({error})\n{self.log()}") from error
        return [self._line(self.connections[rank], deadline) for rank in range(self.ranks)]

    def all_pids(self):
        return self.pids + [launcher.pid for launcher in self.launchers]

    def stop(self, kindly=True):
        """Ends all ranks; they also end by themselves when their socket closes."""
        for connection in self.connections.values() if kindly else ():
            try:
                connection.sendall(b"quit\n")
            except OSError:
                pass
        deadline = time.monotonic() + STOP_S
        for step in (None, signal.SIGTERM, signal.SIGKILL) if kindly else (signal.SIGTERM, signal.SIGKILL):
            for launcher in self.launchers:
                if launcher.poll() is None and step is not None:
                    launcher.send_signal(step)
            for launcher in self.launchers:
                try:
                    launcher.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
            deadline = time.monotonic() + STOP_S
            if all(launcher.poll() is not None for launcher in self.launchers):
                break
        for connection in self.buffers:
            connection.close()
        self.connections, self.buffers = {}, {}
