"""Counts and extents of narrow types, whose sums their own type cannot hold; and exchanges of types that numpy lacks."""

import itertools

import numpy as np

import pyannulus

try:
    import ml_dtypes  # Its types are known by name; nothing needs it.
except ImportError:
    ml_dtypes = None

pyannulus.init(timeout_ms=20000)
RANK, SIZE = pyannulus.rank(), pyannulus.size()
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
ROOT = SIZE - 1


def joined(rows, value):
    """What all ranks' arrays give together: `rows` rows of value(rank) of each."""
    return np.concatenate([np.full((rows, 2), value(rank), np.float32) for rank in range(SIZE)])


for (dtype, rows), kind in itertools.product(((np.int8, 120), (np.uint8, 200), (np.uint16, 50000)), ("array", "list")):
    assert SIZE * rows > np.iinfo(dtype).max or SIZE == 1
    counts = np.full(SIZE, rows, dtype) if kind == "array" else [dtype(rows)] * SIZE
    mine = np.full((rows, 2), RANK, np.float32)
    everyone = joined(rows, lambda rank: rank)
    assert np.array_equal(pyannulus.allgatherv(mine, counts), everyone)
    gathered = pyannulus.gatherv(mine, counts, ROOT)
    assert gathered is None if RANK != ROOT else np.array_equal(gathered, everyone)
    assert np.array_equal(pyannulus.alltoallv(joined(rows, lambda rank: 10 * RANK + rank), counts, counts),
                          joined(rows, lambda rank: 10 * rank + RANK))
    assert np.array_equal(pyannulus.reduce_scatterv(everyone, counts), np.full((rows, 2), SIZE * RANK, np.float32))
    part = np.empty_like(mine)
    scattered = (everyone, counts) if RANK == ROOT else (None, None)
    assert pyannulus.scatterv(*scattered, ROOT, out=part) is part and np.array_equal(part, mine)
assert pyannulus.empty((np.uint8(200), np.uint8(200))).shape == (200, 200)

for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") if ml_dtypes and SIZE > 1 else ():
    sent = np.full(7, RANK + 1).astype(getattr(ml_dtypes, name))
    for exchange in (pyannulus.sendrecv, lambda *args: pyannulus.sendrecv_async(*args).wait()):
        got = np.zeros_like(sent)
        assert exchange(sent, NEXT, got, PREVIOUS) is got and (got.astype(np.float32) == PREVIOUS + 1).all(), (name, got)
    try:
        pyannulus.sendrecv(sent[1:], NEXT, sent[:-1], PREVIOUS)
        raise AssertionError("overlapping arrays were taken")
    except ValueError as error:
        assert "overlap" in str(error), error
pyannulus.barrier()
print("passed")
