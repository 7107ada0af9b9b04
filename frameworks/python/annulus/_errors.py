"""What Annulus raises: one class per outcome that programs tell apart, all of them annulus.Error."""

import enum
from typing import Optional


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


class Error(RuntimeError):
    """A collective, or the set-up of a communicator, failed. Every rank gets the same one."""

    status: Status
    rank: Optional[int]  # The rank at fault, None when none is known.
    peer: Optional[int]  # The rank that noticed or the other end, None when none.
    sequence: int  # The collective's number on its communicator, from 1; 0 when outside any.
    collective: str  # "allreduce" and so on; "" when outside any.
    os_errno: int  # The operating system's cause, 0 when none.
    message: str  # One sentence that names the culprit.
    advice: str  # One sentence on what to do; may be "".

    def __init__(self, status: int, rank: int, peer: int, sequence: int, collective: str, os_errno: int, message: str,
                 advice: str) -> None:
        super().__init__(status, rank, peer, sequence, collective, os_errno, message, advice)  # So that it pickles.
        self.status = Status(status)
        self.rank = rank if rank >= 0 else None
        self.peer = peer if peer >= 0 else None
        self.sequence = sequence
        self.collective = collective
        self.os_errno = os_errno
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        name = self.status.name.lower().replace("_", " ")
        return f"{name}: {self.message}" + (f". {self.advice}" if self.advice else "")


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


CLASSES = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.MISMATCH: Mismatch,
    Status.TIMEOUT: Timeout,
    Status.PEER_LOST: PeerLost,
    Status.ABORTED: Aborted,
}


def make(status: int, *parts: object) -> Error:
    """The exception for a failure, from its parts in the order of Error's arguments."""
    return CLASSES.get(Status(status), Error)(status, *parts)  # type: ignore[arg-type]
