"""A barrier that names the ranks which do not come, through the store: as frameworks/torch/monitored_barrier.cc, with the same keys."""

import contextlib
import datetime
import time


class MonitoredBarrier:
    def __init__(self, store, rank, size):
        self._store, self._rank = store, rank
        self._attempts = [0] * size  # Number of the attempt, by rank: on rank 0 all, elsewhere the own.

    def pass_it(self, limit, wait_all_ranks):
        """Returns when all ranks have called it. RuntimeError after `limit`, a timedelta, in the words of PyTorch's own back end."""
        milliseconds = round(limit.total_seconds() * 1000)
        deadline = time.monotonic() + limit.total_seconds()
        store = self._store.clone()  # Other threads may use the store while this one waits.
        if self._rank == 0:
            self._pass_others(store, deadline, milliseconds, wait_all_ranks)
        else:
            self._pass_self(store, deadline, milliseconds)

    def _key(self, what, rank):
        return f"annulus/monitored_barrier/{rank}/{self._attempts[rank]}{what}"

    def _has_given_up(self, store, rank):
        return store.check([self._key("/gone", rank)])

    def _forget(self, store, rank, *keys):
        """Deletes keys of the rank's attempt, at which nobody looks any more."""
        for what in keys:
            with contextlib.suppress(Exception):  # Not every store can.
                store.delete_key(self._key(what, rank))

    def _arrives(self, store, rank, deadline):
        """Whether the rank is there by then, in whichever attempt of its own."""
        while _comes(store, self._key("/here", rank), deadline):
            if not self._has_given_up(store, rank):
                return True
            self._forget(store, rank, "/here", "/gone")
            self._attempts[rank] += 1
        return False

    def _pass_others(self, store, deadline, milliseconds, wait_all_ranks):
        why = f" failed to pass monitoredBarrier in {milliseconds} ms"
        missing = []
        for rank in range(1, len(self._attempts)):
            if not wait_all_ranks and time.monotonic() >= deadline:
                raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms; ranks before {rank} came in time")
            if self._arrives(store, rank, deadline):
                continue
            missing.append(str(rank))
            if not wait_all_ranks:
                raise RuntimeError(f"[Rank 0]: Rank {rank}{why}")
        if missing:
            raise RuntimeError(f"[Rank 0]: Ranks {', '.join(missing)}{why}")
        # Those that came first may have given up while this rank waited for others.
        while gone := [rank for rank in range(1, len(self._attempts)) if self._has_given_up(store, rank)]:
            if not self._arrives(store, gone[0], deadline):
                raise RuntimeError(f"[Rank 0]: Rank {gone[0]}{why}")
        for rank in range(1, len(self._attempts)):
            store.set(self._key("/go", rank), "1")
            if self._has_given_up(store, rank):  # If it gives up just now, one of the two sees the other's key.
                self._forget(store, rank, "/here", "/go", "/gone")
            self._attempts[rank] += 1

    def _pass_self(self, store, deadline, milliseconds):
        rank = self._rank
        store.set(self._key("/here", rank), "1")
        goes = _comes(store, self._key("/go", rank), deadline)
        if goes:
            self._forget(store, rank, "/here", "/go")
        else:
            store.set(self._key("/gone", rank), "1")
            if store.check([self._key("/go", rank)]):
                self._forget(store, rank, "/here", "/go", "/gone")
        self._attempts[rank] += 1
        if not goes:
            raise RuntimeError(f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                               f"from rank 0: it let no rank go on within {milliseconds} ms. Look at rank 0's output, which names the ranks that were "
                               "missing")


def _comes(store, key, deadline):
    """Whether the key is in the store by then."""
    try:
        store.wait([key], datetime.timedelta(seconds=max(0.001, deadline - time.monotonic())))
        return True
    except Exception:  # pylint: disable=broad-except
        return False
