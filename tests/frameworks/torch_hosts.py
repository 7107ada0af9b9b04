#!/usr/bin/env python3
"""torchrun on two hosts, which are network namespaces: torch_hosts.py PYTHON SITE EXTENSIONS. SITE has the back end, EXTENSIONS what was compiled of
it. Two ranks on each host train for a step. Status 77: there can be no namespaces here."""

import os
import sys

import hosts
import lab

SIZE = 4


def main():
    python, site, extensions = sys.argv[1:4]
    two = hosts.two()
    variables = lab.environment(PYTHONPATH=site, TORCH_EXTENSIONS_DIR=extensions, TORCH_ANNULUS_FORM="compiled", OMP_NUM_THREADS="1")
    jobs = []
    for number, host in enumerate(two):
        command = [python, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={SIZE // 2}", f"--node-rank={number}",
                   f"--master-addr={two[0].address}", "--master-port=29400", os.path.join(hosts.HERE, "torch_hosts_rank.py")]
        jobs.append(lab.Program(host.command(*command), variables))
    good, output = hosts.outcome(jobs)
    good &= all(f"rank {rank} of {SIZE} on host{1 + rank // 2} is content" in output for rank in range(SIZE))
    if not good:
        print(output)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
