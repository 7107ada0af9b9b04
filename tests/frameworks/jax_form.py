"""Tests in the form of JAX's own for several processes (jax._src.test_multiprocess), of what jax_ranks.py does not try: jax_form.py
--num_processes=N --cpu_collectives_implementation=gloo. Over Annulus jax_own.py runs it. It must pass over JAX's gloo, too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax import lax
from jax._src import test_multiprocess
from jax.experimental import io_callback, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


def line(order=1):
    """All devices in a row, in their order or the other way round."""
    return Mesh(np.array(jax.devices()[::order]), ("x",))


def square():
    """Two rows of devices."""
    return Mesh(np.array(jax.devices()).reshape(2, -1), ("x", "y"))


def values(*shape, dtype=np.float32):
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 13 - 3).astype(dtype)


def spread(array, mesh, *spec):
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, P(*spec)), lambda index: array[index])


def mapped(function, mesh, ins, outs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False))


class Case(test_multiprocess.MultiProcessTest):
    """With check(): this process's parts of an array are those of a value that all know."""

    def check(self, array, expected, tolerance=0.0):
        expected = np.asarray(expected)
        self.assertEqual(array.shape, expected.shape)
        for part in array.addressable_shards:
            np.testing.assert_allclose(np.asarray(part.data).astype(expected.dtype), expected[part.index], rtol=tolerance, atol=tolerance)


class ArraysTest(Case):
    def test_processes_and_devices(self):
        self.assertEqual(sorted(device.process_index for device in jax.devices()), list(range(jax.process_count())))
        self.assertEqual([device.process_index for device in jax.local_devices()], [jax.process_index()])

    def test_from_process_local_data(self):
        mesh, size, rank = line(), jax.process_count(), jax.process_index()
        array = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), np.full((2, 3), rank, np.int32))
        self.assertEqual(array.shape, (2 * size, 3))
        self.check(jax.jit(lambda whole: whole.sum(0), out_shardings=NamedSharding(mesh, P()))(array), np.full(3, size * (size - 1), np.int32))

    def test_parts_of_others_cannot_be_read(self):
        array = spread(values(8, 4), line(), "x")
        self.assertFalse(array.is_fully_addressable)
        with self.assertRaisesRegex(RuntimeError, "non-addressable"):
            np.asarray(array)

    @parameterized.parameters([(None, None)], [("x", None)], [(None, "x")])
    def test_put_a_value_of_the_host(self, spec):
        self.check(jax.device_put(values(8, 8), NamedSharding(line(), P(*spec))), values(8, 8))

    @parameterized.product(source=[("x", None), (None, "x"), (None, None)], target=[("x", None), (None, "x"), (None, None)])
    def test_put_elsewhere(self, source, target):
        array = spread(values(8, 8), line(), *source)
        self.check(jax.device_put(array, NamedSharding(line(), P(*target))), values(8, 8))

    @parameterized.parameters(1, -1)
    def test_orders_of_devices(self, order):
        mesh = line(order)
        size = jax.process_count()
        array = spread(values(2 * size, 3), mesh, "x")
        self.check(mapped(lambda part: lax.all_gather(part, "x", tiled=True), mesh, P("x"), P())(array), values(2 * size, 3))
        self.check(mapped(lambda part: part + lax.axis_index("x"), mesh, P("x"), P("x"))(array),
                   values(2 * size, 3) + np.repeat(np.arange(size), 2)[:, None])
        self.check(mapped(lambda part: lax.psum_scatter(part, "x", tiled=True), mesh, P(None), P("x"))(spread(values(2 * size, 3), mesh, None)),
                   size * values(2 * size, 3))

    def test_from_one_order_to_another(self):
        array = spread(values(8, 8), line(), "x")
        self.check(jax.device_put(array, NamedSharding(line(-1), P("x"))), values(8, 8))

    def test_a_mesh_of_one_process(self):
        mesh = Mesh(np.array(jax.local_devices()), ("x",))
        self.check(mapped(lambda part: lax.psum(part, "x"), mesh, P("x"), P("x"))(spread(values(4), mesh, "x")), values(4))


class CollectivesTest(Case):
    @parameterized.parameters("x", "y", ("x", "y"), ("y", "x"))
    def test_axes_of_a_square(self, *axes):
        mesh = square()
        rows, columns = mesh.devices.shape
        array = spread(values(rows * columns * 2), mesh, ("x", "y"))
        parts = values(rows * columns * 2).reshape(rows, columns, 2)
        axis = tuple("xy".index(axis) for axis in axes)
        expected = np.broadcast_to(parts.sum(axis, keepdims=True), parts.shape).reshape(-1)
        self.check(mapped(lambda part: lax.psum(part, axes), mesh, P(("x", "y")), P(("x", "y")))(array), expected)

    def test_groups_of_an_axis(self):
        size = jax.process_count()
        groups = [list(range(0, size, 2)), list(range(1, size, 2))]
        array = spread(values(size, 4), line(), "x")
        total = mapped(lambda part: lax.psum(part, "x", axis_index_groups=groups), line(), P("x"), P("x"))
        expected = np.stack([values(size, 4)[rank % 2::2].sum(0) for rank in range(size)])
        self.check(total(array), expected)

    def test_trees_scalars_and_nothing(self):
        size = jax.process_count()
        one = spread(np.ones(size, np.int32), line(), "x")
        nothing = spread(np.ones((size, 0), np.float32), line(), "x")
        total = mapped(lambda first, second: lax.psum({"a": first[0], "b": [second]}, "x"), line(), (P("x"), P("x")), P())(one, nothing)
        self.check(total["a"], np.int32(size))
        self.check(total["b"][0], np.ones((1, 0), np.float32))

    NARROW = ("bool", "int4", "uint4", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")

    @parameterized.parameters(*NARROW)
    def test_narrow_types_are_gathered(self, dtype):
        whole = np.abs(values(jax.process_count(), 8)).astype(jnp.dtype(dtype))
        gathered = mapped(lambda part: lax.all_gather(part, "x", tiled=True), line(), P("x"), P())(spread(whole, line(), "x"))
        self.check(gathered.astype(jnp.float32), whole.astype(np.float32))

    @parameterized.parameters(*NARROW)
    def test_narrow_types_are_moved(self, dtype):
        size = jax.process_count()
        whole = np.abs(values(size * size, 8)).astype(jnp.dtype(dtype))
        array = spread(whole, line(), "x")
        moved = mapped(lambda part: lax.ppermute(part, "x", [(rank, (rank + 1) % size) for rank in range(size)]), line(), P("x"), P("x"))(array)
        self.check(moved.astype(jnp.float32), np.roll(whole, size, 0).astype(np.float32))
        exchanged = mapped(lambda part: lax.all_to_all(part, "x", 0, 0, tiled=True), line(), P("x"), P("x"))(array)
        self.check(exchanged.astype(jnp.float32), whole.astype(np.float32).reshape(size, size, 8).swapaxes(0, 1).reshape(-1, 8))

    @parameterized.parameters(*NARROW[1:])
    def test_narrow_types_are_summed(self, dtype):
        size = jax.process_count()
        array = spread(np.ones((size, 8), np.float32).astype(jnp.dtype(dtype)), line(), "x")
        total = mapped(lambda part: lax.psum(part, "x"), line(), P("x"), P())(array)
        self.check(total.astype(jnp.float32), np.full((1, 8), size, np.float32))

    def test_some_send_and_some_do_not(self):
        size = jax.process_count()
        array = spread(values(size, 4) + 10, line(), "x")
        moved = mapped(lambda part: lax.ppermute(part, "x", [(0, size - 1)]), line(), P("x"), P("x"))(array)
        expected = np.zeros((size, 4), np.float32)
        expected[-1] = values(size, 4)[0] + 10
        self.check(moved, expected)

    def test_pmap(self):
        size, rank = jax.process_count(), jax.process_index()
        total = jax.pmap(lambda part: lax.psum(part, "i"), axis_name="i")(np.full((1, 3), rank + 1.0, np.float32))
        np.testing.assert_array_equal(np.asarray(total.addressable_shards[0].data).reshape(3), np.full(3, size * (size + 1) / 2))

    def test_large(self):
        size = jax.process_count()
        array = spread(np.ones((size, 5_000_000), np.float32), line(), "x")
        self.check(mapped(lambda part: lax.psum(part, "x"), line(), P("x"), P())(array), np.full((1, 5_000_000), size, np.float32))

    def test_many_under_way(self):
        size = jax.process_count()
        mean = mapped(lambda part: lax.pmean(part, "x") + 1, line(), P("x"), P("x"))
        arrays = [spread(np.full((size, 10 + each), each, np.float32), line(), "x") for each in range(8)]
        for _ in range(30):
            arrays = [mean(array) for array in arrays]
        for each, array in enumerate(arrays):
            self.check(array, np.full((size, 10 + each), each + 30, np.float32))


class CompilerTest(Case):
    """Communication that the compiler chooses: a function gives what it gives of the whole on one device."""

    FUNCTIONS = {
        "any": lambda whole: jnp.any(whole > 8, axis=0),
        "all": lambda whole: jnp.all(whole > -4, axis=0),
        "prod": lambda whole: jnp.prod(1 + whole / 100, axis=0),
        "extremes": lambda whole: jnp.stack([jnp.max(whole, axis=0), jnp.min(whole, axis=0)]),
        "argmax": lambda whole: jnp.argmax(whole, axis=0),
        "sort": lambda whole: jnp.sort(whole, axis=0),
        "cumsum": lambda whole: jnp.cumsum(whole, axis=0),
        "roll": lambda whole: jnp.roll(whole, 3, axis=0),
        "flip": lambda whole: whole[::-1],
        "transpose": lambda whole: whole.T + 1,
        "concatenate": lambda whole: jnp.concatenate([whole, whole], axis=0),
        "pad": lambda whole: jnp.pad(whole, ((1, 7), (0, 0))),
        "gather": lambda whole: whole[jnp.array([5, 0, 15, 3])],
        "scatter": lambda whole: whole.at[jnp.array([5, 0, 15, 3])].add(1.0),
        "slice": lambda whole: lax.dynamic_slice(whole, (jnp.int32(5), jnp.int32(1)), (8, 4)),
        "convolve": lambda whole: lax.conv_general_dilated(whole[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"),
        "fft": lambda whole: jnp.abs(jnp.fft.fft(whole, axis=0)),
        "variance": lambda whole: jnp.var(whole),
        "top": lambda whole: lax.top_k(whole.reshape(-1), 5)[0],
        "matrices": lambda whole: (whole @ whole.T) @ whole,
        "random": lambda whole: whole + jax.random.uniform(jax.random.key(7), whole.shape),
    }

    @parameterized.parameters(*FUNCTIONS)
    def test_function(self, name):
        function = self.FUNCTIONS[name]
        whole = values(16, 8)
        expected = np.asarray(jax.jit(function)(whole))
        for spec in (("x",), (None, "x")):
            sharded = jax.jit(function)(spread(whole, line(), *spec))
            self.check(sharded, expected, tolerance=1e-3)
            self.check(jax.jit(function, out_shardings=NamedSharding(line(), P()))(spread(whole, line(), *spec)), expected, tolerance=1e-3)

    def test_donated_and_compiled_ahead(self):
        array = spread(values(16, 8), line(), "x")
        step = jax.jit(lambda whole: whole - whole.mean(0), donate_argnums=0).lower(array).compile()
        expected = values(16, 8)
        for _ in range(5):
            array = step(array)
            expected = expected - expected.mean(0)
        self.check(array, expected, tolerance=1e-4)

    def test_loops(self):
        def until_small(whole):
            return lax.while_loop(lambda state: jnp.sum(state) > 1.0, lambda state: state / 2, whole)
        whole = np.abs(values(16, 8))
        self.check(jax.jit(until_small)(spread(whole, line(), "x")), jax.jit(until_small)(whole), tolerance=1e-6)

    def test_gradient_of_permuted_parts(self):
        size = jax.process_count()
        ring = [(rank, (rank + 1) % size) for rank in range(size)]

        @functools.partial(jax.shard_map, mesh=line(), in_specs=P("x"), out_specs=P("x"))
        def shifted(part):
            return lax.ppermute(part, "x", ring) ** 2

        array = spread(values(size, 4), line(), "x")
        self.check(jax.jit(jax.grad(lambda whole: jax.checkpoint(shifted)(whole).sum()))(array), 2 * values(size, 4))

    def test_calls_of_the_host(self):
        seen = []
        size = jax.process_count()

        def part(mine):
            total = lax.psum(mine, "x")
            io_callback(lambda value: seen.append(np.asarray(value)), None, total, ordered=False)
            return lax.psum(jax.pure_callback(lambda value: np.asarray(value) * 2, jax.ShapeDtypeStruct(total.shape, total.dtype), total), "x")

        result = mapped(part, line(), P("x"), P())(spread(np.ones((size, 2), np.float32), line(), "x"))
        self.check(result, np.full((1, 2), 2 * size * size, np.float32))
        jax.effects_barrier()
        np.testing.assert_array_equal(seen[0], np.full((1, 2), size, np.float32))


class UtilitiesTest(Case):
    def test_allgather(self):
        size, rank = jax.process_count(), jax.process_index()
        gathered = multihost_utils.process_allgather({"a": np.full(2, rank), "b": np.float32(rank)})
        np.testing.assert_array_equal(gathered["a"], np.repeat(np.arange(size), 2).reshape(size, 2))
        np.testing.assert_array_equal(gathered["b"], np.arange(size))
        np.testing.assert_array_equal(multihost_utils.process_allgather(np.full(2, rank), tiled=True), np.repeat(np.arange(size), 2))
        np.testing.assert_array_equal(multihost_utils.process_allgather(spread(values(8, 4), line(), "x"), tiled=True), values(8, 4))

    def test_broadcast_from_the_last(self):
        size, rank = jax.process_count(), jax.process_index()
        got = multihost_utils.broadcast_one_to_all({"a": np.full(3, rank), "b": rank > 0}, is_source=rank == size - 1)
        np.testing.assert_array_equal(got["a"], np.full(3, size - 1))
        self.assertTrue(bool(got["b"]))

    def test_unequal_values_are_noticed(self):
        multihost_utils.assert_equal(np.arange(3))
        with self.assertRaises(AssertionError):
            multihost_utils.assert_equal(np.full(3, jax.process_index()))

    def test_local_and_global(self):
        size, rank = jax.process_count(), jax.process_index()
        array = multihost_utils.host_local_array_to_global_array(np.full((2, 4), rank, np.float32), line(), P("x"))
        self.assertEqual(array.shape, (2 * size, 4))
        doubled = jax.jit(lambda whole: whole * 2)(array)
        np.testing.assert_array_equal(multihost_utils.global_array_to_host_local_array(doubled, line(), P("x")), np.full((2, 4), 2.0 * rank))

    def test_goes_on_after_a_refusal(self):
        with self.assertRaises(ValueError):
            jax.jit(jax.shard_map(lambda part: part, mesh=line(), in_specs=P("x"), out_specs=P("x")))(values(8 * jax.process_count() + 1))
        multihost_utils.sync_global_devices("after a refusal")


if __name__ == "__main__":
    test_multiprocess.main()
