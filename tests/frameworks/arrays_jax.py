"""One rank of the tests of arrays of JAX in calls of pyannulus, which takes them by DLPack, as inputs: arrays_jax.py. Runs every function
case_* and prints a line for each: "passed NAME" or "failed NAME", with the traceback. arrays_test.py starts the ranks by annulus-run."""

import jax
import jax.numpy as jnp
import numpy as np

import array_cases
import pyannulus

TYPES = ["int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int16", "uint16"]


def case_arrays_of_every_type(rank, size):
    for name in TYPES:
        dtype = jnp.dtype(name)
        out = pyannulus.allreduce(jnp.full((5,), rank + 1, dtype), "max", out=np.empty(5, dtype))
        assert (out.astype(np.float32) == size).all(), (name, out)


def case_results_that_are_not_ready_yet(rank, size):
    """The call waits for what JAX computes meanwhile."""
    @jax.jit
    def slow(matrix):
        return jax.lax.fori_loop(0, 30, lambda _, value: value @ matrix / 300, matrix) * 0 + rank + 1

    out = pyannulus.allreduce(slow(jnp.ones((300, 300))), out=np.empty((300, 300), np.float32))
    assert (out == size * (size + 1) // 2).all()


def case_an_array_is_never_written(rank, size):
    array = jnp.full(3, rank, jnp.float32)
    for call in (lambda: pyannulus.allreduce(array, out=array), lambda: pyannulus.allreduce(np.ones(3, np.float32), out=array),
                 lambda: pyannulus.recv(array, (rank + 1) % size), lambda: pyannulus.allreduce_group([array], in_place=True)):
        try:
            call()
        except ValueError as error:
            assert "is read-only" in str(error), error
        else:
            raise AssertionError("an array of JAX was written")
    assert (array == rank).all()


def case_other_calls(rank, size):
    gathered = pyannulus.allgather(jnp.full((2, 3), rank, jnp.float32), out=np.empty((2 * size, 3), np.float32))
    assert (gathered == np.arange(size).repeat(2)[:, None]).all()
    out = np.empty(3, np.float32)
    sent = pyannulus.send_async(jnp.full(3, rank, jnp.float32), (rank + 1) % size)
    assert (pyannulus.recv(out, (rank - 1) % size) == (rank - 1) % size).all()
    sent.wait()


def case_exchanges_of_types_that_numpy_lacks(rank, size):
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        sent = np.full(5, rank + 1).astype(jnp.dtype(name))
        got = pyannulus.sendrecv(sent, (rank + 1) % size, np.zeros_like(sent), (rank - 1) % size)
        assert (got.astype(np.float32) == (rank - 1) % size + 1).all(), (name, got)


if __name__ == "__main__":
    array_cases.run(globals())
