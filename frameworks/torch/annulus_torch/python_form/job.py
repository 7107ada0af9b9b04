"""What one call of PyTorch does: calls of Annulus, the tensors that they use, and copies at the end."""

import contextlib
import ctypes
import itertools

import torch
from torch.distributed import DistBackendError

from annulus_torch import bindings as annulus
from annulus_torch.python_form.communicator import timeout_ms
from annulus_torch.python_form.library import check, failure, library, make
from annulus_torch.python_form.work import Work

_numbers = itertools.count(1)
_pending = {}  # Jobs under way, by their number.


@annulus.annulus_done_fn
def _done(number, status):
    _pending[number].end(status)


class Job:
    def __init__(self, title):
        self.title = title
        self.result = []
        self.last = None  # Called when the calls are done, after the copies.
        self._calls = []
        self._kept = []
        self._copies = []  # (to, from)
        self._factors = []  # (number of a call, its factor)
        self._operations = {}  # Sums with factors, made for this job, by their factors.
        self._inference = torch.is_inference_mode_enabled()  # In the thread that made the job.
        self._left = 0  # Number of calls that have not ended.
        self._number, self._comm, self._work, self._error = 0, None, None, None

    def read(self, tensor):
        """A contiguous tensor with the values of `tensor`, which the calls may read; the tensor itself if it is contiguous."""
        own = tensor.detach().contiguous()
        self._kept.append(own)
        return own

    def write(self, tensor, keeps=False):
        """One that the calls may write, and whose values `tensor` has in the end. keeps: it has the tensor's values first."""
        tensor = tensor.detach()
        if tensor.is_contiguous():
            self._kept.append(tensor)
            return tensor
        own = tensor.contiguous() if keeps else torch.empty(tensor.shape, dtype=tensor.dtype)
        self._kept.append(own)
        self.copy_at_end(tensor, own)
        return own

    def scratch(self, numel, like):
        self._kept.append(torch.empty(numel, dtype=like.dtype))
        return self._kept[-1]

    def copy_at_end(self, to, source):
        self._copies.append((to.detach(), source))

    def add(self, kind, send, recv, count=0, element=annulus.ANNULUS_UINT8, sendcounts=None, recvcounts=None, **fields):
        """A new call. send and recv: tensors or None; count: of elements, in bytes unless `element` says otherwise."""
        call = make(annulus.annulus_call_t)
        call.kind, call.type, call.count, call.label = kind, element, count, self.title.encode()
        call.sendbuf = None if send is None else send.data_ptr()
        call.recvbuf = None if recv is None else recv.data_ptr()
        for name, counts in (("sendcounts", sendcounts), ("recvcounts", recvcounts)):
            if counts is not None:
                setattr(call, name, (ctypes.c_size_t * len(counts))(*counts))
        for name, value in fields.items():
            setattr(call, name, value)
        self._kept.append((send, recv))
        self._calls.append(call)
        return call

    def add_reduction(self, kind, send, recv, count, reduction, **fields):
        element, op, factor = reduction
        if op is None:
            self._factors.append((len(self._calls), factor))
            op = annulus.ANNULUS_SUM  # Until _make_operations.
        return self.add(kind, send, recv, count, element, op=op, **fields)

    def _make_operations(self, comm, handle):
        """The ranks' numbers of them must agree, so this is the last before the calls are queued: what is refused before it makes none."""
        self._comm = comm
        for call, factor in self._factors:
            if factor not in self._operations:
                made = annulus.annulus_op_t()
                check(library().annulus_op_create_premul_sum(handle, factor, made), self.title)
                self._operations[factor] = made.value
            self._calls[call].op = self._operations[factor]

    def run(self, comm, limit):
        """Does it on the calling thread; raises what failed."""
        for call in self._calls:
            call.timeout_ms = timeout_ms(limit)
        try:
            with comm.in_use() as handle:
                self._make_operations(comm, handle)
                check(self._perform(handle), self.title)
        finally:
            self._destroy_operations()
        self._finish()
        work = Work(self.title, self.result)
        work.complete()
        return work

    def _perform(self, handle):
        if len(self._calls) == 1:
            return library().annulus_run(handle, self._calls[0])
        if not self._calls:
            return annulus.ANNULUS_OK
        request = ctypes.POINTER(annulus.annulus_request_t)()
        status = library().annulus_submit(handle, self._array(), len(self._calls), request)
        if status == annulus.ANNULUS_OK:
            status = library().annulus_request_wait(request, -1)
            if status != annulus.ANNULUS_OK:
                error = failure(status, self.title)
                library().annulus_request_free(request)
                raise error
            library().annulus_request_free(request)
        return status

    def submit(self, comm, limit):
        """Queues it. Raises when it is refused."""
        self._work = work = Work(self.title, self.result)
        if not self._calls:
            self._finish()
            work.complete()
            return work
        self._number, self._comm, self._left = next(_numbers), comm, len(self._calls)
        for call in self._calls:
            call.timeout_ms, call.done, call.context = timeout_ms(limit), _done, self._number
        with comm.in_use() as handle:
            self._make_operations(comm, handle)
            _pending[self._number] = self
            status = library().annulus_submit(handle, self._array(), len(self._calls), None)
            error = None if status == annulus.ANNULUS_OK else failure(status, self.title)
        self._destroy_operations()  # Calls that are queued still use them.
        if error is not None:
            del _pending[self._number]
            work.complete(error)
            raise error
        return work

    def end(self, status):
        """One of the calls has ended. One at a time: callbacks of a communicator have one thread."""
        if status != annulus.ANNULUS_OK and self._error is None:
            self._error = failure(status, self.title, self._comm.handle)
        self._left -= 1
        if self._left > 0:
            return
        del _pending[self._number]
        try:
            if self._error is None:
                self._finish()
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
        self._work.complete(self._error)

    def _array(self):
        return (annulus.annulus_call_t * len(self._calls))(*self._calls)

    def _destroy_operations(self):
        operations, self._operations = self._operations, {}
        with contextlib.suppress(DistBackendError):  # They end with the communicator.
            for op in operations.values():
                with self._comm.in_use() as handle:
                    library().annulus_op_destroy(handle, op)

    def __del__(self):  # Where the call was refused.
        self._destroy_operations()

    def _finish(self):
        # Tensors that were made in inference mode can be written in it only.
        with torch.inference_mode(self._inference), torch.no_grad():
            for to, source in self._copies:
                to.copy_(source)
            if self.last is not None:
                self.last()
