#!/usr/bin/env python3
"""Ranks started by the real launchers, from Debian's packages: every value that they give must reach every rank.

No rank gets a flag or a setting of ours, except the job's key and, for Open MPI and MPICH over several hosts, the
rendezvous: docs/launchers.md says so. A launcher that is not installed fails its tests; third_party/setup/install test
installs them all.
"""

import os
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import lab  # noqa: E402
import slurm  # noqa: E402

PROGRAM = os.path.abspath(os.environ["RANK_REPORT"])
IN_LAB = lab.enter(seconds=150)
KEY = {"ANNULUS_JOB_KEY": "a key for tests, known to everybody", "ANNULUS_LOG": "info"}
REPORT = re.compile(r"report rank=(\d+) size=(\d+) local_rank=(\d+) local_size=(\d+) told=(-?\d+)/(-?\d+)"
                    r" rendezvous=(\S+) sums=(\w+)")
SOURCE = re.compile(r"annulus\[(\d+)\] info: rank (\d+) of (\d+), from (.+)")
LOCAL_MEETING = re.compile(r"127\.0\.0\.1:[23]\d{4}")
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
# Debian's torch 1.13 under Python 3.11 takes "nothing redirected", the default, for an error; a redirection of a rank
# that is not there says the same in other words.
TORCHRUN = ["/usr/bin/python3", "-m", "torch.distributed.run", "--no_python", "--redirects", "9:1", "--tee", "9:1"]


class Launchers(unittest.TestCase):
    maxDiff = None

    def start(self, command, env=None):
        # A folder for each: Open MPI's mpirun fails when another one makes the same folder at the same moment.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return lab.Program([*command, PROGRAM], {**(env or lab.environment()), **KEY, "TMPDIR": folder.name})

    def expect(self, launcher, job, places):
        """`places` holds (local rank, local size) of each rank. Returns where the job met."""
        self.assertEqual(job.finish(60), 0, job.out + job.err)
        text = job.out + job.err
        reports = sorted(REPORT.findall(text), key=lambda report: int(report[0]))
        meeting = reports[0][6] if reports else ""
        size = str(len(places))
        expected = [(str(rank), size, str(local_rank), str(local_size), str(local_rank), str(local_size), meeting, "right")
                    for rank, (local_rank, local_size) in enumerate(places)]
        self.assertEqual(reports, expected, text)
        sources = sorted(set(SOURCE.findall(text)), key=lambda source: int(source[0]))
        self.assertEqual(sources, [(str(rank), str(rank), size, launcher) for rank in range(len(places))], text)
        return meeting

    def expect_on_one_host(self, launcher, command, nranks, env=None):
        """Two jobs at the same time, which must not find each other."""
        jobs = [self.start(command, env) for _ in range(2)]
        meetings = [self.expect(launcher, job, [(rank, nranks) for rank in range(nranks)]) for job in jobs]
        for meeting in meetings:
            self.assertRegex(meeting, LOCAL_MEETING)
        self.assertNotEqual(*meetings)


class OneHost(Launchers):
    def test_open_mpi(self):
        for nranks in (2, 4):
            self.expect_on_one_host("Open MPI", [*MPIRUN, "-np", str(nranks)], nranks)

    def test_mpich(self):
        for nranks in (2, 4):
            self.expect_on_one_host("MPICH Hydra", ["mpirun.mpich", "-np", str(nranks)], nranks)

    def test_torchrun(self):
        job = self.start([*TORCHRUN, "--nproc_per_node", "2"])
        self.assertEqual(self.expect("torchrun", job, [(0, 2), (1, 2)]), "127.0.0.1:29501")


@unittest.skipUnless(IN_LAB, "no lab, see above")
class SeveralHosts(Launchers):
    @classmethod
    def setUpClass(cls):
        cls.hosts = [lab.Host("node1", 1), lab.Host("node2", 2)]
        cls.cluster = slurm.Cluster(cls.hosts)

    def test_slurm_on_one_node(self):
        for nranks in (2, 4):
            self.expect_on_one_host("Slurm", ["srun", "-N", "1", "-n", str(nranks)], nranks, self.cluster.env)

    def test_slurm_with_its_own_pmi(self):
        job = self.start(["srun", "-N", "1", "-n", "2", "--mpi=pmi2"], self.cluster.env)
        self.expect("Slurm", job, [(0, 2), (1, 2)])

    def test_slurm_on_two_nodes(self):
        job = self.start(["srun", "-N", "2", "-n", "3", "-m", "block"], self.cluster.env)
        self.assertRegex(self.expect("Slurm", job, [(0, 2), (1, 2), (0, 1)]), r"^node1:[23]\d{4}$")

    def test_torchrun_on_two_hosts(self):
        jobs = [
            self.start(host.command(*TORCHRUN, "--nnodes", "2", "--node_rank", str(rank), "--nproc_per_node", "2",
                                    "--master_addr", self.hosts[0].address, "--master_port", "29400"))
            for rank, host in enumerate(self.hosts)
        ]
        both = _Both(jobs)
        self.assertEqual(self.expect("torchrun", both, [(0, 2), (1, 2)] * 2), "10.77.0.1:29401")


class _Both:
    """Several programs that are one job."""

    def __init__(self, jobs):
        self._jobs = jobs

    def finish(self, seconds):
        return max(abs(job.finish(seconds)) for job in self._jobs)

    @property
    def out(self):
        return "".join(job.out for job in self._jobs)

    @property
    def err(self):
        return "".join(job.err for job in self._jobs)


if __name__ == "__main__":
    unittest.main()
