"""Reductions that users make."""

from typing import Optional

from pyannulus import _core


class Operation:
    """A reduction of one communicator, which its methods take in place of an op's name. Every rank must make and destroy
    the same ones in the same order."""

    def __init__(self, core: _core.Handle, number: int, reduction: Optional[_core.Reduction] = None) -> None:
        self._core = core
        self._number = number
        self._reduction = reduction

    def number_for(self, core: _core.Handle) -> int:
        if core is not self._core:
            raise ValueError("op was made by another communicator")
        return self._number

    def raise_error(self) -> None:
        """Raises what the reduction's function raised."""
        if self._reduction is not None and self._reduction.error is not None:
            raise self._reduction.error

    def destroy(self) -> None:
        """No new collective may use it; those under way are done with it. Happens by itself with the communicator."""
        self._core.destroy_operation(self._number)
