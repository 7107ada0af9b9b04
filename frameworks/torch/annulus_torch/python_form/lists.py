"""Lists of tensors as one buffer. A list whose tensors are the consecutive parts of one buffer is used as that buffer; others go through a buffer of
the job's."""

import torch


def sizes_of(tensors):
    return [tensor.numel() for tensor in tensors]


def _are_one_buffer(tensors):
    begin = tensors[0].data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.dtype != tensors[0].dtype or tensor.data_ptr() != begin:
            return False
        begin += tensor.numel() * tensor.element_size()
    return True


def write_all(job, tensors, like):
    """A tensor at the memory into which the tensors' parts are written, one behind the other."""
    if _are_one_buffer(tensors):
        return [job.write(tensor) for tensor in tensors][0]
    flat = job.scratch(sum(sizes_of(tensors)), like)
    for tensor, part in zip(tensors, flat.split(sizes_of(tensors))):
        job.copy_at_end(tensor, part.view(tensor.shape))
    return flat


def read_all(job, tensors, like):
    """A tensor at the memory with the tensors' values, one behind the other."""
    if _are_one_buffer(tensors):
        return [job.read(tensor) for tensor in tensors][0]
    flat = job.scratch(sum(sizes_of(tensors)), like)
    with torch.no_grad():
        for tensor, part in zip(tensors, flat.split(sizes_of(tensors))):
            part.copy_(tensor.reshape(-1))
    return flat


def splits_of(tensor, splits, size):
    """(rows of each part, bytes of a row); equal parts if none are given."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row_bytes = tensor.numel() * tensor.element_size() // rows if rows else 0
    if not splits:
        if rows % size:
            raise RuntimeError(f"Annulus: all_to_all of {rows} rows among {size} ranks")
        return [rows // size] * size, row_bytes
    if len(splits) != size or sum(splits) != rows:
        raise RuntimeError(f"Annulus: the split sizes of all_to_all do not add up to the tensor's {rows} rows")
    return list(splits), row_bytes
