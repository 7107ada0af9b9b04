#!/usr/bin/env python3
"""JAX on two hosts, which are network namespaces: jax_hosts.py PYTHON SITE. SITE has pyannulus. Runs jax_ranks.py with two processes on each host,
which annulus-run starts through real sshd, and with one on each, which meet through jax.distributed. Status 77: there can be no namespaces here."""

import os
import sys

import hosts
import lab
import ssh

PROGRAM = os.path.join(hosts.HERE, "jax_ranks.py")
PORT = 29400  # The port of JAX's service. Nobody else is in the lab.


def by_launcher(two, python, site):
    servers = " ".join(ssh.start_servers(two, "/mnt"))
    command = [os.path.join(site, "bin/annulus-run"), "--ssh", servers, "-H", "host1:2,host2:2", "-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS", python, PROGRAM]
    return [lab.Program(command, lab.environment(PYTHONPATH=site, OMP_NUM_THREADS="1"))]


def by_hand(two, python, site):
    variables = lab.environment(PYTHONPATH=site, OMP_NUM_THREADS="1")
    command = [python, PROGRAM, lab.FOLDER]
    return [lab.Program(host.command(*command, str(rank), "2", f"{two[0].address}:{PORT}"), variables) for rank, host in enumerate(two)]


def main():
    python, site = sys.argv[1:3]
    two = hosts.two()
    good = True
    for start, ranks_per_host in ((by_launcher, 2), (by_hand, 1)):
        passed, output = hosts.outcome(start(two, python, site))
        for host in two:
            passed &= output.count(f"all cases passed on {host.name} of {2 * ranks_per_host} ranks\n") == ranks_per_host
        good &= passed
        if not passed:
            print(start.__name__, output)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
