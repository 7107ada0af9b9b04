"""Reductions that users make."""

from annulus import _core


class Operation:
    """A reduction of one communicator, which its methods take in place of an op's name. Every rank must make and destroy
    the same ones in the same order."""

    def __init__(self, core: _core.Handle, number: int) -> None:
        self._core = core
        self._number = number

    def number_for(self, core: _core.Handle) -> int:
        if core is not self._core:
            raise ValueError("op was made by another communicator")
        return self._number

    def raise_error(self) -> None:
        """Raises what the reduction's function raised."""
        error = self._core.error_of(self._number)
        if error is not None:
            raise error

    def destroy(self) -> None:
        """No new collective may use it; those under way are done with it. Happens by itself with the communicator."""
        self._core.destroy_operation(self._number)
