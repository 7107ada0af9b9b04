"""How programs end: jax_ends.py FOLDER RANK SIZE PORT CASE. kept, dropped, mesh: rank 0 reads the result of work that takes a second, and the
others fall off the end with that work queued. raised: rank 1 ends by an exception after it has begun a sum that rank 0 does not join. impatient:
it falls off the end then, and is interrupted there. interrupted: rank 1 gets Ctrl-C while it waits for rank 0 to form the job. Each rank prints
a line that jax_test.py knows."""

import atexit
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

import pyannulus.jax
import suite as suites

pyannulus.jax.enable()

import jax  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

FOLDER, CASE = sys.argv[1], sys.argv[5]
RANK, SIZE, PORT = map(int, sys.argv[2:5])
kept = []


def mapped(function, mesh):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))


def ones(mesh):
    return jax.make_array_from_callback((SIZE, 1000), NamedSharding(mesh, P("x")), lambda index: np.ones((1, 1000), np.float32))


def wait_for(name):
    deadline = time.monotonic() + 100
    while not pathlib.Path(FOLDER, name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {name} within 100 s")
        time.sleep(0.05)


def leave_early():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    if CASE == "mesh":
        jax.set_mesh(mesh)
    step = mapped(lambda part: lax.fori_loop(0, 5000, lambda _, mean: lax.pmean(mean, "x"), part), mesh)
    state = jax.block_until_ready(step(ones(mesh)))
    for _ in range(10):
        state = step(state)
    if CASE == "kept":
        kept.append(state)
    print(f"result {np.asarray(state.addressable_shards[0].data)[0, 0]}" if RANK == 0 else "end", flush=True)


def end_without_others():
    if RANK == 1:
        atexit.register(pathlib.Path(FOLDER, "left").touch)  # Runs after what JAX registers when it makes its client.
    mesh = Mesh(np.array(jax.devices()), ("x",))
    mean = mapped(lambda part: lax.pmean(part, "x"), mesh)
    array = jax.block_until_ready(mean(ones(mesh)))
    if RANK == 1:
        kept.append(mean(array))
        if CASE == "raised":
            raise RuntimeError("on purpose")
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        atexit.register(signal.alarm, 2)  # Runs just before what JAX has registered.
        print("end", flush=True)
        return
    try:
        wait_for("left")
        jax.block_until_ready(mean(array))
        print("no error", flush=True)
    except Exception as error:  # pylint: disable=broad-except
        print("error:", " ".join(str(error).split()), flush=True)


def interrupt_the_meeting():
    if RANK == 1:
        await_value = pyannulus.jax._await_value

        def await_and_interrupt(*arguments):
            pyannulus.jax._await_value = await_value
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
            return await_value(*arguments)

        pyannulus.jax._await_value = await_and_interrupt
        try:
            jax.devices()
            time.sleep(10)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    else:
        print("end", flush=True)
    suites.wait_for_others(FOLDER, RANK, range(SIZE))
    os._exit(0)


jax.distributed.initialize(f"127.0.0.1:{PORT}", SIZE, RANK, coordinator_bind_address=f"127.0.0.1:{PORT}")
{"raised": end_without_others, "impatient": end_without_others, "interrupted": interrupt_the_meeting}.get(CASE, leave_early)()
