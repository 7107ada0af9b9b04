"""A collective that is under way."""

import math
from typing import Generic, Optional, TypeVar, Union

from pyannulus import _core
from pyannulus._errors import Error
from pyannulus._operation import Operation

Result = TypeVar("Result")

# As long as a timeout gets: a year in milliseconds, as good as for ever.
_LONGEST_MS = 365 * 24 * 3600 * 1000


def _milliseconds(timeout: float) -> int:
    if math.isnan(timeout):
        raise ValueError("timeout is NaN")
    return int(min(max(0, timeout * 1000), _LONGEST_MS))


class Request(Generic[Result]):
    """An asynchronous collective. The library keeps its arrays alive until it is done, whether or not this object lives;
    meanwhile they must not be written, nor the output read."""

    __slots__ = ()

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits until it is done and returns its result, that of the blocking form. Raises pyannulus.Error when it failed,
        and the built-in TimeoutError when it is not done after `timeout` seconds: then it may be waited for again.
        Without a timeout the communicator's timeout_ms bounds it. May be called often and from several threads."""
        raise NotImplementedError

    def test(self) -> bool:
        """Whether it is done. Raises pyannulus.Error when it failed."""
        raise NotImplementedError


class Started(_core.Started, Request[Result]):
    """The request of a call of plain arrays, in C++ (frameworks/python/started.h)."""

    __slots__ = ()


class Queued(Request[Result]):
    """The request of any call."""

    def __init__(self, core: Optional[_core.Request], result: Result, op: Union[str, Operation] = "") -> None:
        self._core = core  # None: of a group that is not queued yet.
        self._result = result
        self._op = op

    def _wait(self, timeout_ms: int) -> bool:
        if self._core is None:
            raise RuntimeError("the group has not been queued: its with block is open, or ended with an exception")
        if not isinstance(self._op, Operation):
            return self._core.wait(timeout_ms)
        try:
            return self._core.wait(timeout_ms)
        except Error:
            self._op.raise_error()
            raise

    def wait(self, timeout: Optional[float] = None) -> Result:
        if timeout is None:
            self._wait(-1)
        elif not self._wait(_milliseconds(timeout)):
            raise TimeoutError(f"not done after {timeout} s")
        return self._result

    def test(self) -> bool:
        return self._wait(0)


class Ended(Request[Result]):
    """The request of a call that has ended well."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def wait(self, timeout: Optional[float] = None) -> Result:
        return self._result

    def test(self) -> bool:
        return True
