"""Two hosts, which are network namespaces, for programs that Suite.on_two_hosts starts."""

import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "../launchers_real"))

import lab  # noqa: E402
from suite import NO_LAB  # noqa: E402

SECONDS = 400


def two():
    """[host1, host2]. Ends the program with the status NO_LAB where there can be none."""
    if not lab.enter(SECONDS):
        sys.exit(NO_LAB)
    return [lab.Host("host1", 1), lab.Host("host2", 2)]


def outcome(jobs):
    """(whether all programs have ended with status 0, what they have written)."""
    statuses = [job.finish(SECONDS // 2 - 20) for job in jobs]
    return set(statuses) == {0}, "".join(job.out + job.err for job in jobs) + f"statuses {statuses}\n"
