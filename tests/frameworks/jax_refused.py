"""What pyannulus.jax refuses: jax_refused.py FOLDER late | alone | devices COUNT [PORT] | permute. Prints the error, which jax_test.py knows, or
"no error" and a sum."""

import os
import sys

import numpy as np

import pyannulus.jax
import suite as suites


def late():
    import jax  # pylint: disable=unused-import
    pyannulus.jax.enable()


def alone():
    for name in [name for name in os.environ if name.startswith("ANNULUS_")]:
        del os.environ[name]
    pyannulus.jax.initialize()


def devices(count, world=""):
    """So many devices in each process: with two, half of the sums would be missing."""
    if world:  # As one who does without pyannulus.jax.
        os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "mpi"
        os.environ["MPITRAMPOLINE_LIB"] = os.path.join(os.path.dirname(pyannulus.__file__), "libannulus_mpiwrapper.so")
    else:
        pyannulus.jax.enable()
    import jax
    jax.config.update("jax_num_cpu_devices", int(count))
    if world:
        jax.distributed.initialize(f"127.0.0.1:{world}", annulus_size(), annulus_rank())
    else:
        pyannulus.jax.initialize()
    apply(lambda part: jax.lax.psum(part, "x"))


def permute():
    """From process 0 to 1, in a world that nobody could join: each process must not take itself for the sender."""
    pyannulus.jax.initialize()
    import jax
    os.environ["ANNULUS_CHANNELS"] = "none"
    apply(lambda part: jax.lax.ppermute(part, "x", [(0, 1)]))


def apply(function):
    import jax
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    array = jax.make_array_from_callback((len(jax.devices()),), jax.sharding.NamedSharding(mesh, spec), lambda index: np.ones(1, np.float32))
    applied = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))
    print("no error:", [part.data for part in jax.block_until_ready(applied(array)).addressable_shards], flush=True)


def annulus_rank():
    return int(os.environ["ANNULUS_RANK"])


def annulus_size():
    return int(os.environ["ANNULUS_SIZE"])


def main():
    rank = annulus_rank()
    try:
        {"late": late, "alone": alone, "devices": devices, "permute": permute}[sys.argv[2]](*sys.argv[3:])
    except Exception as error:  # pylint: disable=broad-except
        print("error:", " ".join(str(error).split()), flush=True)
    suites.wait_for_others(sys.argv[1], rank, (0, 1))
    os._exit(0)  # JAX would wait for the other process, whose work has failed too.


if __name__ == "__main__":
    main()
