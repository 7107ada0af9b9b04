"""PyTorch's types and reductions as Annulus's."""

import torch
from torch.distributed import ReduceOp

from annulus_torch import bindings as annulus

TYPES = {
    torch.float32: annulus.ANNULUS_FLOAT32, torch.float64: annulus.ANNULUS_FLOAT64, torch.float16: annulus.ANNULUS_FLOAT16,
    torch.bfloat16: annulus.ANNULUS_BFLOAT16, torch.float8_e4m3fn: annulus.ANNULUS_FLOAT8_E4M3, torch.float8_e5m2: annulus.ANNULUS_FLOAT8_E5M2,
    torch.int8: annulus.ANNULUS_INT8, torch.uint8: annulus.ANNULUS_UINT8, torch.int16: annulus.ANNULUS_INT16, torch.uint16: annulus.ANNULUS_UINT16,
    torch.int32: annulus.ANNULUS_INT32, torch.uint32: annulus.ANNULUS_UINT32, torch.int64: annulus.ANNULUS_INT64,
    torch.uint64: annulus.ANNULUS_UINT64, torch.bool: annulus.ANNULUS_BOOL, torch.complex64: annulus.ANNULUS_COMPLEX64,
    torch.complex128: annulus.ANNULUS_COMPLEX128,
}
BITWISE = ("BAND", "BOR", "BXOR")
OPS = {"SUM": annulus.ANNULUS_SUM, "AVG": annulus.ANNULUS_AVG, "PRODUCT": annulus.ANNULUS_PROD, "MIN": annulus.ANNULUS_MIN,
       "MAX": annulus.ANNULUS_MAX, "BAND": annulus.ANNULUS_BAND, "BOR": annulus.ANNULUS_BOR, "BXOR": annulus.ANNULUS_BXOR}


def name_of(op):
    return next((name for name in (*OPS, "PREMUL_SUM") if op == getattr(ReduceOp, name)), "UNUSED")


def _has(dtype, name):
    """Whether elements of the type have the operation (annulus_op_t in annulus.h)."""
    if name in BITWISE:
        return not dtype.is_floating_point and not dtype.is_complex
    if dtype == torch.bool:
        return name not in ("AVG", "PREMUL_SUM")
    return not dtype.is_complex or name not in ("MIN", "MAX")


def _holds(dtype, factor):
    """Whether the type can hold the factor, as Annulus asks of integers."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    limits = torch.iinfo(dtype)
    return factor.is_integer() and limits.min <= int(factor) <= limits.max


def reduction_of(dtype, op):
    """(Annulus's type, its operation or None, the factor): without an operation it is a sum to which each rank contributes its elements times the
    factor. RuntimeError where there is no such reduction."""
    name = name_of(op)
    if dtype not in TYPES or name == "UNUSED" or not _has(dtype, name):
        raise RuntimeError(f"Annulus has no reduction {name} of tensors of type {dtype}")
    if name == "PREMUL_SUM":
        factor = float(op.factor)
        if not _holds(dtype, factor):
            raise RuntimeError(f"Annulus: PREMUL_SUM with the factor {factor:g}, which is no {dtype}")
        return TYPES[dtype], None, factor
    return TYPES[dtype], OPS[name], 1.0
