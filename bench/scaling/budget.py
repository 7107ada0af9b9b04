"""How long a measurement may take: bounds the whole run, and what one cell may take of it."""

import time

BATCH_SECONDS = 0.4  # Long enough to drown the clock and the moment in which ranks wake up.
LEAST_CALLS = 5  # Back to back, as training makes them: ranks never begin nor end at one moment, which would count in full for one.
MOST_CALLS = 300
ROUNDS = 3
LONGEST_CALL = 30.0  # A call that takes longer says no more than its estimate does.


class Budget:
    """`minutes` for all numbers of ranks, each of which gets a share by its own size."""

    def __init__(self, minutes, counts):
        self._left = 60.0 * minutes
        self._weights = list(counts)
        self._begin = 0.0
        self._share = 0.0

    def begin(self):
        """The next number of ranks begins."""
        self._share = self._left * self._weights[0] / sum(self._weights)
        self._begin = time.monotonic()

    def end(self):
        self._left -= time.monotonic() - self._begin
        self._weights.pop(0)

    def seconds(self):
        """What is left of the share."""
        return max(0.0, self._share - (time.monotonic() - self._begin))


def expected_seconds(library, count, size, rate, last_seconds):
    """A generous guess at a call's time: a server's link carries everybody's data, a ring's links twice a rank's."""
    shares = count if library == "server" else 2
    return last_seconds + 1.5 * shares * size / (rate or 1e9 / count)


def calls_of(seconds):
    """Calls in a batch when one takes so long."""
    return max(LEAST_CALLS, min(MOST_CALLS, int(BATCH_SECONDS / seconds)))


def rounds_for(call_seconds, left):
    """Rounds of a batch of each library that fit the time left, given a call's seconds by library."""
    if not call_seconds:
        return 0
    round_seconds = sum(seconds * calls_of(seconds) for seconds in call_seconds) + 0.1 * len(call_seconds)
    return min(ROUNDS, int(left / round_seconds))
