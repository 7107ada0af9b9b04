#!/usr/bin/env python3
"""Times JAX's collectives between processes on CPUs, over Annulus and over JAX's own gloo, in turns on the same machine.

  jax_beside_gloo.py --python PYTHON [--ranks 2,4] [--rounds 3] [--bytes 1K,64K,1M,16M]

PYTHON is that of an environment with JAX (third_party/setup/install_jax) in which the wheel of annulus is installed. Prints a row for each collective,
size and number of processes: median (of the rounds' medians) and least time of both in microseconds, and the two ratios. Sizes are each process's input.
"""

import os
import statistics
import time

import beside_gloo

COLLECTIVES = ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute", "nothing")


def one_rank(rank, size, port, back_end, sizes):
    """A process of the job; rank 0 prints "measured collective bytes median least" lines."""
    if back_end == "annulus":
        import pyannulus.jax
        pyannulus.jax.enable()
    else:
        os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank, coordinator_bind_address=f"127.0.0.1:{port}")
    mesh = Mesh(np.array(jax.devices()), ("x",))
    functions = {
        "psum": (lambda part: lax.psum(part, "x"), P()),
        "all_gather": (lambda part: lax.all_gather(part, "x", tiled=True), P()),
        "psum_scatter": (lambda part: lax.psum_scatter(part, "x", tiled=True), P("x")),
        "all_to_all": (lambda part: lax.all_to_all(part, "x", 0, 0, tiled=True), P("x")),
        "ppermute": (lambda part: lax.ppermute(part, "x", [(r, (r + 1) % size) for r in range(size)]), P("x")),
        "nothing": (lambda part: part * 2, P("x")),  # What JAX itself takes for a pass over the data.
    }
    for nbytes in sizes:
        values = np.ones(nbytes // 4 * size, np.float32)
        array = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("x")), lambda index, whole=values: whole[index])
        for name, (function, out) in functions.items():
            call = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=out, check_vma=False))
            for _ in range(2):
                jax.block_until_ready(call(array))
            times = []
            for _ in range(100 if nbytes <= 65536 else 20 if nbytes <= 1 << 20 else 10):
                begin = time.perf_counter()
                jax.block_until_ready(call(array))
                times.append(time.perf_counter() - begin)
            if rank == 0:
                print("measured", name, nbytes, statistics.median(times) * 1e6, min(times) * 1e6, flush=True)


if __name__ == "__main__":
    beside_gloo.main(one_rank, "1K,64K,1M,16M")
