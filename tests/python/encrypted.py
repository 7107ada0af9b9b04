"""Sums over links whose encryption the environment sets; an argument is what the highest rank has in its place, and then
there is no job."""

import os
import sys

import numpy as np

import pyannulus

rank, size = int(os.environ["ANNULUS_RANK"]), int(os.environ["ANNULUS_SIZE"])
other = sys.argv[1] if len(sys.argv) > 1 else None
try:
    pyannulus.init(**({"encrypt": other} if other and rank == size - 1 else {}))
    assert other is None, "ranks that differ were let in"
    array = np.full(100_000, rank + 1, np.float32)
    assert (pyannulus.allreduce(array) == size * (size + 1) / 2).all()
    pyannulus.finalize()
    print("passed")
except pyannulus.Mismatch as error:
    assert {other, os.environ["ANNULUS_ENCRYPT"]} == {"required", "off"}, error
    assert all(f"has ANNULUS_ENCRYPT={each}" in str(error) for each in ("required", "off")), error
    print("passed")
