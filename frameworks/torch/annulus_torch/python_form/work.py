"""One call as PyTorch sees it. PyTorch wraps a work of Python in one of its own, which passes on `wait` and `get_future` only."""

import concurrent.futures
import datetime
import os
import threading

import torch
from torch._C._distributed_c10d import Work as BaseWork

# Completes futures: a callback of one may wait for another collective, so there is always a thread more than callbacks that wait.
_pool = concurrent.futures.ThreadPoolExecutor(max_workers=1000, thread_name_prefix="annulus future")


def _renew_pool():
    global _pool
    _pool = concurrent.futures.ThreadPoolExecutor(max_workers=1000, thread_name_prefix="annulus future")


os.register_at_fork(after_in_child=_renew_pool)  # A forked child has none of the threads.


class Work(BaseWork):
    def __init__(self, title, result):
        super().__init__()
        self._title, self._result = title, result
        self._ended = threading.Event()
        self._error = None
        self._lock = threading.Lock()
        self._began, self._future = None, None  # What a future waits for, and the future; None until somebody asks for it.

    def complete(self, error=None):
        """Once. Waiters go on, and the future is completed by a thread of the pool."""
        self._error = error
        with self._lock:
            self._ended.set()
            if self._began is not None:
                _pool.submit(self._began.set_result, None)

    def wait(self, timeout=datetime.timedelta(0)):
        if not self._ended.wait(timeout.total_seconds() or None):
            raise RuntimeError(f"Annulus: {self._title}: not done after a timeout of {timeout.total_seconds()} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self):
        with self._lock:
            if self._future is None:
                # An error that is raised in a callback is one for C++ too; set_exception's is for Python only.
                self._began = torch.futures.Future()
                self._future = self._began.then(self._outcome)
                if self._ended.is_set():  # Nobody has a callback at it yet, so none runs here.
                    self._began.set_result(None)
            return self._future

    def _outcome(self, _future):
        if self._error is not None:
            raise self._error
        return self._result
