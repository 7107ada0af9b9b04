"""The highest rank dies by SIGKILL while the others wait for it, the odd ones in an asynchronous call."""

import os
import signal

import numpy as np

import annulus

# annulus-run ends the job with the first rank that fails; the survivors have something to say before they go.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
annulus.init(timeout_ms=20000)
last = annulus.size() - 1
annulus.barrier()
if annulus.rank() == last:
    os.kill(os.getpid(), signal.SIGKILL)
array = np.ones(1 << 18, np.float32)
try:
    if annulus.rank() % 2:
        annulus.allreduce_async(array).wait(10)
    else:
        annulus.allreduce(array)
except annulus.PeerLost as error:
    assert error.status is annulus.Status.PEER_LOST and error.rank == last, error
    assert f"rank {last} died" in error.message and error.collective in ("allreduce", "barrier", ""), error
    print("passed")
