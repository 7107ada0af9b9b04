"""One process of a job that loses one: jax_killed.py FOLDER RANK SIZE PORT. The last process kills itself
after some calls; each of the others prints the time from then until its exception, in milliseconds, and its text."""

import os
import signal
import sys
import time

import numpy as np

import pyannulus.jax
import suite as suites

pyannulus.jax.enable()

import jax  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402


def main():
    folder, (rank, size, port) = sys.argv[1], map(int, sys.argv[2:])
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank, coordinator_bind_address=f"127.0.0.1:{port}")
    mesh = Mesh(np.array(jax.devices()), ("x",))
    values = np.ones((size, 1000), np.float32)
    array = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("x")), lambda index: values[index])
    total = jax.jit(jax.shard_map(lambda part: lax.pmean(part, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    mark = os.path.join(folder, "killed")
    try:
        for step in range(100_000):
            if step == 20 and rank == size - 1:
                with open(mark, "w", encoding="utf-8") as opened:
                    opened.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            array = jax.block_until_ready(total(array))
    except Exception as error:  # pylint: disable=broad-except
        with open(mark, encoding="utf-8") as opened:
            print(round(1000 * (time.time() - float(opened.read()))), " ".join(str(error).split()), flush=True)
        suites.wait_for_others(folder, rank, range(size - 1))
        os._exit(0)
    print("no error", flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
