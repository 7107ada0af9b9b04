#!/usr/bin/env python3
"""Times JAX's collectives between processes on CPUs, over Annulus and over JAX's own gloo, in turns on the same machine.

  beside_gloo.py --python PYTHON [--ranks 2,4] [--rounds 3] [--bytes 1K,64K,1M,16M]

PYTHON is that of an environment with JAX (third_party/setup/install_jax) in which the wheel of annulus is installed. Prints a row for each collective,
size and number of processes: median (of the rounds' medians) and least time of both in microseconds, and the two ratios. Sizes are each process's input.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

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


def job(python, size, back_end, sizes):
    """{(collective, bytes): (median, least) in us}."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([python, __file__, "rank", str(rank), str(size), str(port), back_end, ",".join(map(str, sizes))],
                              stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True) for rank in range(size)]
    output = ranks[0].communicate(timeout=600)[0]
    if any(each.wait(60) for each in ranks):
        sys.exit(f"{back_end}: a process failed")
    rows = [line.split()[1:] for line in output.splitlines() if line.startswith("measured ")]  # gloo prints lines of its own.
    return {(name, int(nbytes)): (float(median), float(least)) for name, nbytes, median, least in rows}


def main():
    if sys.argv[1:2] == ["rank"]:
        rank, size, port = map(int, sys.argv[2:5])
        return one_rank(rank, size, port, sys.argv[5], list(map(int, sys.argv[6].split(","))))
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", default="1K,64K,1M,16M")
    arguments = parser.parse_args()
    sizes = [int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] for text in arguments.bytes.split(",")]
    for size in map(int, arguments.ranks.split(",")):
        rounds = {"gloo": [], "annulus": []}
        for _ in range(arguments.rounds):
            for back_end, results in rounds.items():
                results.append(job(arguments.python, size, back_end, sizes))
        print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
        for name in COLLECTIVES:
            for nbytes in sizes:
                both = [[each[name, nbytes] for each in rounds[back_end]] for back_end in rounds]
                medians = [statistics.median(median for median, _ in each) for each in both]
                leasts = [min(least for _, least in each) for each in both]
                print(f"| {size} | {name} | {nbytes >> 10} KiB | {medians[0]:.0f} | {medians[1]:.0f} | {medians[0] / medians[1]:.1f} | "
                      f"{leasts[0]:.0f} | {leasts[1]:.0f} | {leasts[0] / leasts[1]:.1f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
