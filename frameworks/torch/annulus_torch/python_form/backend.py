"""The collectives of torch.distributed on tensors in CPU memory. A call with asyncOp false is done by the thread that makes it, any other by the
communicator's thread."""

import datetime
import time

import torch
from torch._C._distributed_c10d import Backend as BaseBackend
from torch._C._distributed_c10d import ErrorType
from torch.distributed import DistBackendError

from annulus_torch import bindings as annulus
from annulus_torch.python_form import library, sparse
from annulus_torch.python_form.communicator import Communicator
from annulus_torch.python_form.elements import reduction_of
from annulus_torch.python_form.job import Job
from annulus_torch.python_form.lists import read_all, sizes_of, splits_of, write_all
from annulus_torch.python_form.monitored_barrier import MonitoredBarrier

VERDICT_SECONDS = 5  # What the verdict of an abort takes at most; usually far less than a millisecond.
UNSET = datetime.timedelta(milliseconds=-1)
# Back ends that have not been shut down: PyTorch does not always keep the Python part of one, without which no method here is found.
_alive = set()

ERRORS = {annulus.ANNULUS_OK: ErrorType.SUCCESS, annulus.ANNULUS_TIMEOUT: ErrorType.TIMEOUT, annulus.ANNULUS_PEER_LOST: ErrorType.REMOTE_ERROR}


def make(store, rank, size, timeout_ms, _wait_blocks=False, _register_bytes=0):
    """_wait_blocks is for CUDA tensors, which this form refuses; it registers nothing. RuntimeError where PyTorch is too old for it."""
    try:
        BaseBackend(rank, size)
    except TypeError as error:
        raise RuntimeError(f"Annulus: PyTorch {torch.__version__} has no back ends in Python, so the form in Python cannot be used; the compiled form takes a"
                           " compiler (TORCH_ANNULUS_FORM=compiled says what is missing)") from error
    return Backend(store, rank, size, datetime.timedelta(milliseconds=timeout_ms))


def version():
    return library.library().annulus_version().decode()


def _need(ok, *why):
    if not ok:
        raise RuntimeError("Annulus: " + "".join(map(str, why)))


def _check_device(tensor):
    _need(tensor.device.type == "cpu", "the form in Python works on tensors in CPU memory, and CUDA tensors take the compiled form, which takes a "
          "compiler (TORCH_ANNULUS_FORM=compiled says what is missing); this one is on ", tensor.device)


def _check(*tensors):
    for tensor in tensors:
        _check_device(tensor)
        _need(tensor.layout == torch.strided, "it works on dense tensors; this one is ", tensor.layout)


def _only(tensors):
    _need(len(tensors) == 1, "a call takes one tensor, not ", len(tensors))
    return tensors[0]


def _check_types(what, sources, targets):
    """That all have one type. Neither list is empty."""
    for source, target in [(tensor, targets[0]) for tensor in sources] + [(sources[0], tensor) for tensor in targets]:
        _need(source.dtype == target.dtype, what, " from ", source.dtype, " to ", target.dtype)


def _verdict(handle):
    error = library.make(annulus.annulus_error_t)
    library.library().annulus_comm_verdict(handle, error)
    return error.status


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


class Backend(BaseBackend):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._sequence, self._error = 0, ErrorType.SUCCESS
        self._comm = Communicator(store, rank, size, timeout)
        self._barrier = MonitoredBarrier(store, rank, size)
        _alive.add(self)

    # -- What it is. The properties would otherwise ask the base class, which asks here. ------------------------------

    supports_splitting = property(lambda self: True)
    supports_coalescing = property(lambda self: False)
    supports_shrinking = property(lambda self: False)
    supports_reconfigure = property(lambda self: False)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)

    def getBackendName(self):
        return "annulus"

    @property
    def options(self):
        return BaseBackend.Options("annulus", self._timeout)

    def set_timeout(self, timeout):
        self._timeout = timeout

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_sequence_number_for_group(self):
        pass

    def get_error(self):
        try:
            with self._comm.in_use() as handle:
                return ERRORS.get(_verdict(handle), ErrorType.COMM_ERROR)
        except DistBackendError:
            return self._error

    def abort(self):
        """Stays in _alive: calls after it still say that it was aborted. What it holds of the system ends here."""
        try:
            with self._comm.in_use() as handle:
                library.library().annulus_comm_abort(handle, b"abort of the process group")
                deadline = time.monotonic() + VERDICT_SECONDS
                while _verdict(handle) == annulus.ANNULUS_OK and time.monotonic() < deadline:
                    time.sleep(0.001)  # Else works that are pending would say that it was destroyed.
        except DistBackendError:
            return
        self._error = ErrorType.COMM_ERROR
        self._comm.close("Annulus: aborted: abort of the process group")

    def shutdown(self):
        _alive.discard(self)
        self._comm.close()

    def perform_nocolor_split(self, _device):
        """Where the default group has a device, PyTorch calls this on the ranks that are not in a new group. The ranks in it meet by themselves."""

    def split(self, store, ranks, options):
        if self._rank not in ranks:
            return None
        return Backend(store, ranks.index(self._rank), len(ranks), self._timeout if options is None else options._timeout)

    # -- How calls are made. ------------------------------------------------------------------------------------------

    def _ready(self):
        with self._comm.in_use():
            return self._comm

    def _limit(self, timeout):
        return timeout if timeout > datetime.timedelta(0) else self._timeout

    def _start(self, job, result, timeout, asynchronous):
        job.result = result
        self._sequence += 1
        return (job.submit if asynchronous else job.run)(self._ready(), self._limit(timeout))

    def _check_rank(self, rank, what):
        _need(0 <= rank < self._size, what, " is rank ", rank, " of a group of ", self._size)

    # -- Single tensors. ----------------------------------------------------------------------------------------------

    def broadcast(self, tensors, opts):
        tensor = _only(tensors)
        _check(tensor)
        self._check_rank(opts.rootRank, "the root")
        job = Job("annulus:broadcast")
        own = job.read(tensor) if opts.rootRank == self._rank else job.write(tensor)
        job.add(annulus.ANNULUS_CALL_BROADCAST, own, own, _bytes(own), root=opts.rootRank)
        return self._start(job, [tensor], opts.timeout, opts.asyncOp)

    def allreduce(self, tensors, opts):
        if _only(tensors).layout == torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_sparse(self, tensors, opts):
        tensor = _only(tensors)
        _check_device(tensor)
        _need(tensor.layout == torch.sparse_coo, "all_reduce of a tensor that is ", tensor.layout)
        job = sparse.make_job(tensor, opts.reduceOp, self._ready(), self._size, self._limit(opts.timeout))
        return self._start(job, [tensor], opts.timeout, opts.asyncOp)

    def allreduce_coalesced(self, tensors, opts):
        job = Job("annulus:all_reduce")
        for tensor in tensors:
            _check(tensor)
            reduction = reduction_of(tensor.dtype, opts.reduceOp)
            own = job.write(tensor, keeps=True)
            job.add_reduction(annulus.ANNULUS_CALL_ALLREDUCE, own, own, own.numel(), reduction)
        return self._start(job, list(tensors), opts.timeout, opts.asyncOp)

    def reduce(self, tensors, opts):
        tensor = _only(tensors)
        _check(tensor)
        self._check_rank(opts.rootRank, "the root")
        job = Job("annulus:reduce")
        reduction = reduction_of(tensor.dtype, opts.reduceOp)
        is_root = opts.rootRank == self._rank
        own = job.write(tensor, keeps=True) if is_root else job.read(tensor)
        job.add_reduction(annulus.ANNULUS_CALL_REDUCE, own, own if is_root else None, own.numel(), reduction, root=opts.rootRank)
        return self._start(job, [tensor], opts.timeout, opts.asyncOp)

    def all_gather_single(self, output, tensor, opts):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        _need(len(outputs) == len(inputs), "all_gather of ", len(inputs), " tensors into ", len(outputs))
        job = Job("annulus:all_gather")
        for output, tensor in zip(outputs, inputs):
            _check(output, tensor)
            _need(output.dtype == tensor.dtype, "all_gather from ", tensor.dtype, " to ", output.dtype)
            _need(output.numel() == tensor.numel() * self._size, "all_gather of ", tensor.numel(), " elements from each of ", self._size,
                  " ranks does not fit into ", output.numel())
            own = job.read(tensor)
            job.add(annulus.ANNULUS_CALL_ALLGATHER, own, job.write(output), _bytes(own))
        return self._start(job, list(outputs), opts.timeout, opts.asyncOp)

    def reduce_scatter_single(self, output, tensor, opts):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        _need(len(outputs) == len(inputs), "reduce_scatter of ", len(inputs), " tensors into ", len(outputs))
        job = Job("annulus:reduce_scatter")
        for output, tensor in zip(outputs, inputs):
            _check(output, tensor)
            _need(output.dtype == tensor.dtype, "reduce_scatter from ", tensor.dtype, " to ", output.dtype)
            _need(tensor.numel() == output.numel() * self._size, "reduce_scatter of ", tensor.numel(), " elements gives each of ", self._size,
                  " ranks more or fewer than ", output.numel())
            reduction = reduction_of(tensor.dtype, opts.reduceOp)
            everything, own = job.read(tensor), job.write(output)
            job.add_reduction(annulus.ANNULUS_CALL_REDUCE_SCATTER, everything, own, own.numel(), reduction)
        return self._start(job, list(outputs), opts.timeout, opts.asyncOp)

    # -- Lists of tensors. --------------------------------------------------------------------------------------------

    def _add_list_allgather(self, job, outputs, tensor):
        _check(tensor, *outputs)
        _need(len(outputs) == self._size, "all_gather into a list of ", len(outputs), " tensors among ", self._size, " ranks")
        sizes = sizes_of(outputs)
        _need(sizes[self._rank] == tensor.numel(), "all_gather of ", tensor.numel(), " elements, for which this rank's own list has ",
              sizes[self._rank])
        _check_types("all_gather", [tensor], outputs)
        own, everything = job.read(tensor), write_all(job, outputs, tensor)
        if len(set(sizes)) == 1:
            job.add(annulus.ANNULUS_CALL_ALLGATHER, own, everything, _bytes(own))
        else:
            job.add(annulus.ANNULUS_CALL_ALLGATHERV, own, everything, _bytes(own), recvcounts=[size * tensor.element_size() for size in sizes])

    def allgather(self, outputs, inputs, opts):
        _need(len(outputs) == 1 and len(inputs) == 1, "all_gather takes one tensor and one list")
        job = Job("annulus:all_gather")
        self._add_list_allgather(job, outputs[0], inputs[0])
        return self._start(job, list(outputs[0]), opts.timeout, opts.asyncOp)

    def allgather_coalesced(self, outputs, inputs, opts):
        """outputs[r][i] is rank r's inputs[i]."""
        _need(len(outputs) == self._size, "all_gather_coalesced into ", len(outputs), " lists among ", self._size, " ranks")
        job = Job("annulus:all_gather")
        for part in outputs:
            _need(len(part) == len(inputs), "all_gather_coalesced of ", len(inputs), " tensors into a list of ", len(part))
        for index, tensor in enumerate(inputs):
            self._add_list_allgather(job, [part[index] for part in outputs], tensor)
        return self._start(job, [tensor for part in outputs for tensor in part], opts.timeout, opts.asyncOp)

    def gather(self, outputs, inputs, opts):
        tensor = _only(inputs)
        _check(tensor)
        self._check_rank(opts.rootRank, "the root")
        is_root = opts.rootRank == self._rank
        _need(len(outputs) == 1 and len(outputs[0]) == self._size if is_root else not outputs, "gather needs a list of ", self._size,
              " tensors at the root, and none elsewhere")
        job = Job("annulus:gather")
        own, everything = job.read(tensor), None
        if is_root:
            _check(*outputs[0])
            for output in outputs[0]:
                _need(output.numel() == own.numel(), "gather of ", own.numel(), " elements into a tensor of ", output.numel())
            _check_types("gather", inputs, outputs[0])
            everything = write_all(job, outputs[0], own)
        job.add(annulus.ANNULUS_CALL_GATHER, own, everything, _bytes(own), root=opts.rootRank)
        return self._start(job, list(outputs[0]) if is_root else [], opts.timeout, opts.asyncOp)

    def scatter(self, outputs, inputs, opts):
        output = _only(outputs)
        _check(output)
        self._check_rank(opts.rootRank, "the root")
        is_root = opts.rootRank == self._rank
        _need(len(inputs) == 1 and len(inputs[0]) == self._size if is_root else not inputs, "scatter needs a list of ", self._size,
              " tensors at the root, and none elsewhere")
        job = Job("annulus:scatter")
        own, everything = job.write(output), None
        if is_root:
            _check(*inputs[0])
            for tensor in inputs[0]:
                _need(tensor.numel() == own.numel(), "scatter of a tensor of ", tensor.numel(), " elements into ", own.numel())
            _check_types("scatter", inputs[0], outputs)
            everything = read_all(job, inputs[0], own)
        job.add(annulus.ANNULUS_CALL_SCATTER, everything, own, _bytes(own), root=opts.rootRank)
        return self._start(job, [output], opts.timeout, opts.asyncOp)

    def reduce_scatter(self, outputs, inputs, opts):
        _need(len(outputs) == 1 and len(inputs) == 1 and len(inputs[0]) == self._size, "reduce_scatter takes one tensor and a list of ", self._size)
        output, sizes = outputs[0], sizes_of(inputs[0])
        _check(output, *inputs[0])
        reduction = reduction_of(output.dtype, opts.reduceOp)
        _need(sizes[self._rank] == output.numel(), "reduce_scatter of a part of ", sizes[self._rank], " elements into a tensor of ", output.numel())
        _check_types("reduce_scatter", inputs[0], outputs)
        job = Job("annulus:reduce_scatter")
        everything, own = read_all(job, inputs[0], output), job.write(output)
        if len(set(sizes)) == 1:
            job.add_reduction(annulus.ANNULUS_CALL_REDUCE_SCATTER, everything, own, own.numel(), reduction)
        else:
            job.add_reduction(annulus.ANNULUS_CALL_REDUCE_SCATTERV, everything, own, own.numel(), reduction, sendcounts=sizes)
        return self._start(job, [output], opts.timeout, opts.asyncOp)

    def all_to_all_single(self, output, tensor, output_splits, input_splits, opts):
        _check(output, tensor)
        _need(output.dtype == tensor.dtype, "all_to_all from ", tensor.dtype, " to ", output.dtype)
        job = Job("annulus:all_to_all")
        to, to_bytes = splits_of(tensor, input_splits, self._size)
        source, source_bytes = splits_of(output, output_splits, self._size)
        job.add(annulus.ANNULUS_CALL_ALLTOALLV, job.read(tensor), job.write(output), sendcounts=[rows * to_bytes for rows in to],
                recvcounts=[rows * source_bytes for rows in source])
        return self._start(job, [output], opts.timeout, opts.asyncOp)

    def alltoall(self, outputs, inputs, opts):
        _need(len(outputs) == self._size and len(inputs) == self._size, "all_to_all takes lists of ", self._size, " tensors")
        _check(*outputs, *inputs)
        _check_types("all_to_all", inputs, outputs)
        job = Job("annulus:all_to_all")
        job.add(annulus.ANNULUS_CALL_ALLTOALLV, read_all(job, inputs, inputs[0]), write_all(job, outputs, inputs[0]),
                sendcounts=list(map(_bytes, inputs)), recvcounts=list(map(_bytes, outputs)))
        return self._start(job, list(outputs), opts.timeout, opts.asyncOp)

    # -- Messages and barriers. ---------------------------------------------------------------------------------------

    def send(self, tensors, peer, tag):
        tensor = _only(tensors)
        _check(tensor)
        self._check_rank(peer, "the receiver")
        _need(tag >= 0, "the tag of a message is 0 or more, not ", tag)
        job = Job("annulus:send")
        own = job.read(tensor)
        job.add(annulus.ANNULUS_CALL_SEND, own, None, _bytes(own), root=peer, tag=tag)
        return self._start(job, [], self._timeout, True)

    def recv(self, tensors, peer, tag):
        self._check_rank(peer, "the sender")
        return self._receive(tensors, peer, tag)

    def recv_anysource(self, tensors, tag):
        return self._receive(tensors, annulus.ANNULUS_ANY_PEER, tag)

    def _receive(self, tensors, peer, tag):
        tensor = _only(tensors)
        _check(tensor)
        _need(tag >= 0, "the tag of a message is 0 or more, not ", tag)
        job = Job("annulus:recv")
        own = job.write(tensor)
        job.add(annulus.ANNULUS_CALL_RECV, None, own, _bytes(own), root=peer, tag=tag)
        return self._start(job, [tensor], self._timeout, True)

    def barrier(self, opts):
        job = Job("annulus:barrier")
        job.add(annulus.ANNULUS_CALL_BARRIER, None, None)
        return self._start(job, [], opts.timeout, opts.asyncOp)

    def monitored_barrier(self, opts, wait_all_ranks):
        self._ready()  # Refuses it where all calls are refused. The barrier itself does not use the communicator.
        # 0 is a limit here.
        self._barrier.pass_it(self._timeout if opts.timeout == UNSET else opts.timeout, wait_all_ranks)
