"""What Annulus raises: one class per outcome that programs tell apart, all of them pyannulus.Error."""

import enum
from typing import Dict, Optional, Type, TypeVar, Union

Number = TypeVar("Number", bound=enum.IntEnum)


class Status(enum.IntEnum):
    """Outcomes, numbered as annulus_status_t of annulus.h."""

    OK = 0
    IN_PROGRESS = 1
    INVALID_ARGUMENT = 2
    MISMATCH = 3
    TIMEOUT = 4
    PEER_LOST = 5
    PROTOCOL_ERROR = 6
    AUTH_FAILED = 7
    ABORTED = 8
    SYSTEM_ERROR = 9
    OUT_OF_MEMORY = 10
    UNSUPPORTED = 11
    INTERNAL = 12


class Scope(enum.IntEnum):
    """Whom a failure concerns."""

    CALL = 0  # This call alone, which did nothing: the communicator stays usable.
    COMMUNICATOR = 1  # The communicator, which has ended on every rank.


class Cause(enum.IntEnum):
    """Where an error's cause_code comes from."""

    NONE = 0
    ERRNO = 1
    CUDA = 2
    VERBS = 3


def _known(numbers: Type[Number], number: int) -> Union[Number, int]:
    """The member of that number, or the number itself where a later library has more of them."""
    try:
        return numbers(number)
    except ValueError:
        return number


def status_of(number: int) -> Union[Status, int]:
    return _known(Status, number)


class Error(RuntimeError):
    """A collective, or the set-up of a communicator, failed. One of scope COMMUNICATOR is the same on every rank."""

    status: Union[Status, int]
    scope: Union[Scope, int]
    rank: Optional[int]  # The rank at fault, None when none is known.
    peer: Optional[int]  # The rank that noticed or the other end, None when none.
    sequence: int  # The collective's number on its communicator, from 1; 0 when outside any.
    collective: str  # "allreduce" and so on; "" when outside any.
    label: str  # The failed call's; "" when it has none, and in a verdict.
    cause: Union[Cause, int]
    cause_code: int  # errno, for example; 0 when there is none.
    message: str  # One sentence that names the culprit.
    advice: str  # One sentence on what to do; may be "".

    def __init__(self, status: int, scope: int, rank: int, peer: int, sequence: int, collective: str, label: str,
                 cause: int, cause_code: int, message: str, advice: str) -> None:
        super().__init__(status, scope, rank, peer, sequence, collective, label, cause, cause_code, message,
                         advice)  # So that it pickles.
        self.status = status_of(status)
        self.scope = _known(Scope, scope)
        self.rank = rank if rank >= 0 else None
        self.peer = peer if peer >= 0 else None
        self.sequence = sequence
        self.collective = collective
        self.label = label
        self.cause = _known(Cause, cause)
        self.cause_code = cause_code
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        name = self.status.name.lower().replace("_", " ") if isinstance(self.status, Status) else f"status {self.status}"
        label = f' ("{self.label}")' if self.label else ""
        return f"{name}{label}: {self.message}" + (f". {self.advice}" if self.advice else "")


class InvalidArgument(Error, ValueError):
    """An argument or setting is wrong. Nothing was sent, the communicator stays usable."""


class Mismatch(Error):
    """Ranks called different collectives, types, operations, counts or roots."""


class Timeout(Error):
    """The deadline passed; `rank` is the one that was missing."""


class PeerLost(Error):
    """`rank` died, left or became unreachable."""


class Aborted(Error):
    """Some rank called abort(), or the communicator was closed with work pending."""


CLASSES: Dict[int, Type[Error]] = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.MISMATCH: Mismatch,
    Status.TIMEOUT: Timeout,
    Status.PEER_LOST: PeerLost,
    Status.ABORTED: Aborted,
}


def make(status: int, *parts: object) -> Error:
    """The exception for a failure, from its parts in the order of Error's arguments."""
    return CLASSES.get(status_of(status), Error)(status, *parts)  # type: ignore[arg-type]
