"""Which form of the back end a process uses: the compiled one (native.py), or the one in Python (python_form), which needs no compiler.

TORCH_ANNULUS_FORM says which: compiled, python, or auto, which takes the compiled one where it can be had. Ranks of one group may differ.
"""

import functools
import os
import re
import sys

from annulus_torch import native

VARIABLE = "TORCH_ANNULUS_FORM"
FORMS = ("auto", "compiled", "python")
BLOCKING = "TORCH_ANNULUS_BLOCKING_WAIT"
REGISTER = "TORCH_ANNULUS_REGISTER_BYTES"


def wait_blocks():
    """Whether works on CUDA tensors are to block the host in `wait`."""
    wanted = os.environ.get(BLOCKING) or "0"
    if wanted not in ("0", "1"):
        raise RuntimeError(f"{BLOCKING} is {wanted}; allowed: 0, 1")
    return wanted == "1"


def register_bytes():
    """The most memory of CPU tensors that this process registers at a time, in bytes; 0: none."""
    wanted = os.environ.get(REGISTER) or "0"
    if not re.fullmatch("[0-9]{1,18}", wanted):
        raise RuntimeError(f"{REGISTER} is {wanted}; allowed: a whole number of bytes")
    return int(wanted)


@functools.lru_cache(maxsize=None)
def chosen():
    """(name, module with make and version). RuntimeError says why there is none."""
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in FORMS:
        raise RuntimeError(f"{VARIABLE} is {wanted}; allowed: {', '.join(FORMS)}")
    if wanted != "python":
        try:
            return "compiled", native.load()
        except Exception as error:  # pylint: disable=broad-except
            if wanted == "compiled":
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            why = next((line for line in lines if " error: " in line), lines[0])[:300]
            print(f"annulus: the back end for PyTorch could not be compiled, so its form in Python is used, which is slower ({why}). {VARIABLE}=python "
                  f"chooses it without this message, {VARIABLE}=compiled shows all of the error.", file=sys.stderr, flush=True)
    from annulus_torch.python_form import backend
    return "python", backend
