"""Annulus as a back end of torch.distributed: init_process_group("annulus"). docs/pytorch.md is the guide.

PyTorch finds `register` by the entry point torch.distributed.backends, so programs need not import this package. It is written in C++
(annulus_torch/src) and compiled when it is first used, once for each version of PyTorch (native.py). Where that cannot be done, a form in Python
takes its place (python_form; forms.py chooses).
"""

import datetime

__all__ = ["form", "register", "registered"]

DEVICES = ["cpu", "cuda"]


def register():
    """Makes the back end "annulus" known to torch.distributed. Does nothing when it is known."""
    import torch.distributed as dist

    if "ANNULUS" not in dist.Backend._plugins:
        dist.Backend.register_backend("annulus", _make, extended_api=True, devices=DEVICES)


def form():
    """Which form of the back end this process uses: "compiled" or "python". Compiles it if that has not been done."""
    from annulus_torch import forms

    return forms.chosen()[0]


def registered():
    """What this process has registered for its peers to read (docs/pytorch.md, "Registered tensors"), as a dict: the bound in bytes (limit_bytes), the bytes
    and tensors that are registered now, and how many tensors were registered so far (ever), were refused because of the sort of their memory
    (refused), and were left out because of the bounds (left_out). None in the form in Python, which registers nothing."""
    from annulus_torch import forms

    name, module = forms.chosen()
    return module.registered() if name == "compiled" else None


def _make(options, _backend_options=None):
    """The back end of one group. Blocks until all its ranks have come, at most for the group's timeout."""
    from annulus_torch import forms

    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    return forms.chosen()[1].make(options.store, options.group_rank, options.group_size, max(1, round(seconds * 1000)),
                                  forms.wait_blocks(), forms.register_bytes())
