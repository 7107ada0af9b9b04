"""The highest rank dies by SIGKILL while the others wait for it, the odd ones in an asynchronous call."""

import os
import signal

import numpy as np

import pyannulus

# annulus-run ends the job with the first rank that fails; the survivors have something to say before they go.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pyannulus.init(timeout_ms=20000)
last = pyannulus.size() - 1
pyannulus.barrier()
if pyannulus.rank() == last:
    os.kill(os.getpid(), signal.SIGKILL)
array = np.ones(1 << 18, np.float32)
try:
    if pyannulus.rank() % 2:
        pyannulus.allreduce_async(array).wait(10)
    else:
        pyannulus.allreduce(array)
except pyannulus.PeerLost as error:
    assert error.status is pyannulus.Status.PEER_LOST and error.rank == last, error
    assert f"rank {last} died" in error.message and error.collective in ("allreduce", "barrier", ""), error
    print("passed")
