"""Sums of sparse tensors: as frameworks/torch/backend_sparse.cc, with the same exchanges."""

import math

import torch
from torch.distributed import ReduceOp

from annulus_torch import bindings as annulus
from annulus_torch.python_form.elements import reduction_of
from annulus_torch.python_form.job import Job

TITLE = "annulus:sparse_all_reduce"
MAX_DIMENSIONS = 16
FIELDS = 4 + MAX_DIMENSIONS  # Number of elements, type, number of sparse dimensions, number of dimensions, sizes.


def _describe(tensor):
    if tensor.dim() > MAX_DIMENSIONS:
        raise RuntimeError(f"Annulus: all_reduce of a sparse tensor of {tensor.dim()} dimensions; there may be {MAX_DIMENSIONS}")
    described = torch.zeros(FIELDS, dtype=torch.int64)
    described[0], described[1] = tensor._nnz(), reduction_of(tensor.dtype, ReduceOp.SUM)[0]
    described[2], described[3] = tensor.sparse_dim(), tensor.dim()
    described[4:4 + tensor.dim()] = torch.tensor(tensor.shape)
    return described


def _counts_of(descriptions, own):
    for rank, theirs in enumerate(descriptions):
        if not torch.equal(theirs[1:], own[1:]):
            raise RuntimeError(f"Annulus: all_reduce of sparse tensors of different types or sizes: rank {rank} of the group has another one than this "
                               "rank")
        if theirs[0] < 0:
            raise RuntimeError(f"Annulus: rank {rank} of the group says that its sparse tensor has {int(theirs[0])} elements")
    return [int(theirs[0]) for theirs in descriptions]


def _gather_rows(job, own, counts):
    row_bytes = own.element_size() * math.prod(own.shape[1:])
    everything = torch.empty((sum(counts), *own.shape[1:]), dtype=own.dtype)
    job.add(annulus.ANNULUS_CALL_ALLGATHERV, own, everything, own.numel() * own.element_size(), recvcounts=[count * row_bytes for count in counts])
    return everything


def make_job(tensor, op, comm, size, limit):
    """The job of the second exchange, once the first has been made."""
    if op != ReduceOp.SUM:
        raise RuntimeError("Annulus: all_reduce of sparse tensors has only the reduction SUM")
    given = tensor.detach().coalesce()
    own, descriptions = _describe(given), torch.empty((size, FIELDS), dtype=torch.int64)
    exchange = Job(TITLE)
    exchange.add(annulus.ANNULUS_CALL_ALLGATHER, own, descriptions, FIELDS, annulus.ANNULUS_INT64)
    exchange.run(comm, limit)
    counts = _counts_of(descriptions, own)
    job = Job(TITLE)
    indices = _gather_rows(job, given._indices().t().contiguous(), counts)
    values = _gather_rows(job, given._values().contiguous(), counts)
    # PyTorch by itself does not look whether indices, which have come from other ranks, are within the tensor.
    job.last = lambda: tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=True).coalesce())
    job.result = [tensor]
    return job
