"""One process of the tests of JAX over Annulus: jax_ranks.py FOLDER RANK SIZE ADDRESS, or jax_ranks.py. ADDRESS is host:port of JAX's service.
Runs every function case_* and prints a line for each: "passed NAME" or "failed NAME", with the traceback. jax_test.py starts the ranks, and
jax_hosts.py on two hosts; in the second form by annulus-run."""

import os
import socket
import sys
import traceback

import numpy as np

import pyannulus.jax

if __name__ == "__main__":
    if len(sys.argv) > 1:
        pyannulus.jax.enable()
    else:
        pyannulus.jax.initialize()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

# Every type of which XLA lets MPI reduce, and those of which it moves data only.
NUMBERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128"]


def mesh_of(*shape, names="xyz"):
    return Mesh(np.array(jax.devices()).reshape(shape), tuple(names[:len(shape)]))


def spread(values, mesh, spec):
    """`values`, of which each process has its part."""
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])


def mapped(function, mesh, ins, outs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False))


def equal(array, expected, exact=True):
    """This process's parts of `array` are those of `expected`."""
    assert array.shape == expected.shape and array.dtype == expected.dtype, (array.shape, array.dtype, expected.shape, expected.dtype)
    for part in array.addressable_shards:
        got, want = np.asarray(part.data), expected[part.index]
        assert np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-4, atol=1e-3), (got, want)


def numbers(size, rows=3, dtype="float32"):
    """Small whole numbers, `rows` rows for each process."""
    return (np.arange(size * rows * 4).reshape(size * rows, 4) % 7 + 1).astype(dtype)


def case_psum_of_every_type(size):
    mesh = mesh_of(size)
    for dtype in NUMBERS:
        values = numbers(size, dtype=dtype)
        parts = values.reshape(size, 3, 4)
        arrays = spread(values, mesh, P("x"))
        equal(mapped(lambda part: lax.psum(part, "x"), mesh, P("x"), P())(arrays), parts.sum(0).astype(dtype))


def case_pmean_pmin_pmax(size):
    mesh = mesh_of(size)
    for dtype in ("float32", "int16", "uint8", "int64", "float64"):
        values = numbers(size, dtype=dtype)
        parts = values.reshape(size, 3, 4)
        arrays = spread(values, mesh, P("x"))
        equal(mapped(lambda part: lax.pmax(part, "x"), mesh, P("x"), P())(arrays), parts.max(0))
        equal(mapped(lambda part: lax.pmin(part, "x"), mesh, P("x"), P())(arrays), parts.min(0))
    values = numbers(size)
    equal(mapped(lambda part: lax.pmean(part, "x"), mesh, P("x"), P())(spread(values, mesh, P("x"))), values.reshape(size, 3, 4).mean(0),
          exact=False)


def case_all_gather_of_every_type(size):
    mesh = mesh_of(size)
    for dtype in [*NUMBERS, "bool"]:
        values = numbers(size, dtype=dtype)
        gathered = mapped(lambda part: lax.all_gather(part, "x", tiled=True), mesh, P("x"), P())(spread(values, mesh, P("x")))
        equal(gathered, values)


def case_psum_scatter_of_every_type(size):
    mesh = mesh_of(size)
    for dtype in NUMBERS:
        values = numbers(size, rows=size * 2, dtype=dtype)
        total = values.reshape(size, size * 2, 4).sum(0).astype(dtype)
        scattered = mapped(lambda part: lax.psum_scatter(part, "x", tiled=True), mesh, P("x"), P("x"))(spread(values, mesh, P("x")))
        equal(scattered, total)


def case_all_to_all(size):
    mesh = mesh_of(size)
    for dtype in ("float32", "int8", "complex128", "bool", "bfloat16", "float16"):
        values = numbers(size, rows=size).astype(dtype)
        turned = mapped(lambda part: lax.all_to_all(part, "x", 0, 0, tiled=True), mesh, P("x"), P("x"))(spread(values, mesh, P("x")))
        equal(turned, values.reshape(size, size, 4).swapaxes(0, 1).reshape(size * size, 4))


def case_ppermute(size):
    mesh = mesh_of(size)
    values = numbers(size)
    parts = values.reshape(size, 3, 4)
    arrays = spread(values, mesh, P("x"))
    ring = [(rank, (rank + 1) % size) for rank in range(size)]
    equal(mapped(lambda part: lax.ppermute(part, "x", ring), mesh, P("x"), P("x"))(arrays), np.roll(parts, 1, 0).reshape(values.shape))
    # Only the first sends, to the last; the others get zeros.
    some = np.zeros_like(parts)
    some[size - 1] = parts[0]
    equal(mapped(lambda part: lax.ppermute(part, "x", [(0, size - 1)]), mesh, P("x"), P("x"))(arrays), some.reshape(values.shape))
    # To itself.
    same = [(rank, rank) for rank in range(size)]
    equal(mapped(lambda part: lax.ppermute(part, "x", same), mesh, P("x"), P("x"))(arrays), values)


def case_jit_over_a_mesh(size):
    mesh = mesh_of(size)
    left = (np.arange(8.0 * size * 6).reshape(8 * size, 6) / 10).astype(np.float32)
    right = np.linspace(0, 1, 6 * 5).reshape(6, 5).astype(np.float32)
    rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    product = jax.jit(lambda a, b: a @ b, out_shardings=whole)(spread(left, mesh, P("x")), spread(right, mesh, P()))
    equal(product, left @ right, exact=False)
    # Reductions that the partitioner makes: products, all and any among them.
    ones = 1 + (np.arange(size * 4) % 3 == 0)
    for function in (jnp.prod, jnp.sum, jnp.max, jnp.min):
        for dtype in ("float32", "int32", "int16"):
            values = ones.astype(dtype)
            got = jax.jit(function, out_shardings=whole)(jax.device_put(spread(values, mesh, P("x")), rows))
            equal(got, np.asarray(getattr(np, function.__name__)(values)).astype(got.dtype))
    flags = np.arange(size * 4) != 3
    for function in (jnp.all, jnp.any):
        got = jax.jit(function, out_shardings=whole)(spread(flags, mesh, P("x")))
        equal(got, np.asarray(getattr(np, function.__name__)(flags)))
    turns = np.exp(1j * np.arange(size * 4)).astype(np.complex64)
    equal(jax.jit(jnp.prod, out_shardings=whole)(spread(turns, mesh, P("x"))), np.prod(turns), exact=False)


def case_two_dimensions(size):
    """Rows and columns of a mesh are communicators of their own."""
    if size < 4:
        return
    mesh = mesh_of(2, size // 2)
    values = np.arange(4.0 * 4 * size).reshape(8, 2 * size).astype(np.float32)
    arrays = spread(values, mesh, P("x", "y"))
    over_x = mapped(lambda part: lax.psum(part, "x"), mesh, P("x", "y"), P(None, "y"))(arrays)
    equal(over_x, values.reshape(2, 4, 2 * size).sum(0))
    over_y = mapped(lambda part: lax.psum(part, "y"), mesh, P("x", "y"), P("x", None))(arrays)
    equal(over_y, values.reshape(8, size // 2, 4).sum(1))
    over_both = mapped(lambda part: lax.psum(lax.psum(part, "y"), "x"), mesh, P("x", "y"), P())(arrays)
    both = mapped(lambda part: lax.psum(part, ("x", "y")), mesh, P("x", "y"), P())(arrays)
    equal(over_both, values.reshape(2, 4, size // 2, 4).sum((0, 2)))
    equal(both, values.reshape(2, 4, size // 2, 4).sum((0, 2)))
    right = np.linspace(-1, 1, 2 * size * 8).reshape(2 * size, 8).astype(np.float32)
    product = jax.jit(lambda a, b: a @ b, out_shardings=NamedSharding(mesh, P("x", "y")))(arrays, spread(right, mesh, P("y", "x")))
    equal(product, values @ right, exact=False)


def case_meshes_of_some_processes(size):
    """Both halves run a program over a mesh of their own at the same time."""
    if size < 4:
        return
    half = size // 2
    first = 0 if jax.process_index() < half else half
    mesh = Mesh(np.array(jax.devices()[first:first + half]), ("x",))
    values = numbers(half) + first
    total = mapped(lambda part: lax.psum(part, "x"), mesh, P("x"), P())(spread(values, mesh, P("x")))
    equal(total, values.reshape(half, 3, 4).sum(0))


def case_grad_and_scan(size):
    """Data-parallel gradient descent gives what one process gives."""
    mesh = mesh_of(size)
    inputs = np.sin(np.arange(16.0 * size * 3)).reshape(16 * size, 3).astype(np.float32)
    truth = (inputs @ np.array([[1.0], [-2.0], [0.5]])).astype(np.float32)

    def loss(weights, x, y):
        return jnp.mean((x @ weights - y) ** 2)

    def train(weights, x, y, gradient):
        def step(current, _):
            return current - 0.1 * gradient(current, x, y), loss(current, x, y)
        return lax.scan(step, weights, None, length=50)[0]

    def parallel(weights, x, y):
        return train(weights, x, y, lambda *where: lax.pmean(jax.grad(loss)(*where), "x"))

    start = np.zeros((3, 1), np.float32)
    trained = mapped(parallel, mesh, (P(), P("x"), P("x")), P())(spread(start, mesh, P()), spread(inputs, mesh, P("x")), spread(truth, mesh, P("x")))
    alone = train(jnp.asarray(start), jnp.asarray(inputs), jnp.asarray(truth), jax.grad(loss))
    equal(trained, np.asarray(alone), exact=False)


def case_same_bits_each_time(size):
    mesh = mesh_of(size)
    values = np.random.default_rng(5).standard_normal((size * 1000, 3)).astype(np.float32)
    function = mapped(lambda part: lax.psum(part, "x"), mesh, P("x"), P())
    first = np.asarray(function(spread(values, mesh, P("x"))).addressable_shards[0].data)
    for _ in range(10):
        again = np.asarray(function(spread(values, mesh, P("x"))).addressable_shards[0].data)
        assert first.tobytes() == again.tobytes()


def case_multihost_utils(size):
    from jax.experimental import multihost_utils
    rank = jax.process_index()
    multihost_utils.sync_global_devices("here")
    assert multihost_utils.broadcast_one_to_all(np.array([rank + 5]))[0] == 5
    everyone = multihost_utils.process_allgather(np.array([rank, 2 * rank]))
    assert everyone.tolist() == [[each, 2 * each] for each in range(size)], everyone


def case_enable_may_come_again(_size):
    pyannulus.jax.enable()


def case_sixteen_bit_floats(size):
    """XLA knows no MPI type for them: it adds bfloat16 in float32, and refuses float16 before Annulus is asked."""
    mesh = mesh_of(size)
    total = mapped(lambda part: lax.psum(part, "x"), mesh, P("x"), P())
    values = numbers(size).astype(jnp.bfloat16)
    equal(total(spread(values, mesh, P("x"))), values.reshape(size, 3, 4).astype(np.float32).sum(0).astype(jnp.bfloat16))
    try:
        jax.block_until_ready(total(spread(numbers(size, dtype="float16"), mesh, P("x"))))
    except Exception as error:  # pylint: disable=broad-except
        assert "Unsupported primitive type" in str(error), error
    else:
        raise AssertionError("XLA now adds float16: docs/jax.md must say so")


def main():
    jax.config.update("jax_enable_x64", True)
    if len(sys.argv) > 1:
        rank, size, address = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
        jax.distributed.initialize(address, size, rank, coordinator_bind_address=address)
        assert jax.process_index() == rank and jax.process_count() == size
    size = jax.process_count()
    assert len(jax.local_devices()) == 1 and len(jax.devices()) == size
    failures = 0
    for name, case in sorted(globals().items()):
        if not name.startswith("case_"):
            continue
        try:
            case(size)
            print("passed", name, flush=True)
        except BaseException:  # pylint: disable=broad-except
            failures += 1
            print("failed", name, traceback.format_exc(), flush=True)
    if not failures:
        print(f"all cases passed on {socket.gethostname()} of {size} ranks", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
