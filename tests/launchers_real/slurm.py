"""A real Slurm cluster in the lab: munged, slurmctld and a slurmd on each host, all with files of their own."""

import os
import socket

import lab

PORT = 6817
# One machine plays all nodes: more processors are promised than there are, and nothing is measured or confined.
CONFIG = """
ClusterName=annulus
SlurmctldHost=lab
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=2
NodeName={nodes} CPUs=8 RealMemory=256 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP
"""


class Cluster:
    """Usable once made; `env` is what srun needs to find it."""

    def __init__(self, hosts):
        self.env = lab.environment(SLURM_CONF=f"{lab.FOLDER}/slurm.conf")
        self._names = ["munged", "slurmctld"]
        os.mkdir(f"{lab.FOLDER}/state")
        with open(f"{lab.FOLDER}/slurm.conf", "w", encoding="utf-8") as config:
            config.write(CONFIG.format(folder=lab.FOLDER, port=PORT, nodes=",".join(host.name for host in hosts)))
        self._start_munge()
        lab.start_daemon(["slurmctld", "-D"], "slurmctld", self.env)
        for host in hosts:
            name = f"slurmd-{host.name}"
            self._names.append(name)
            lab.start_daemon(host.command("slurmd", "-D"), name, self.env)
        try:
            lab.until(_controller_listens, 20, "slurmctld")
            # sinfo lists a state for each node; "idle*" is one that has not reported yet.
            lab.until(lambda: self._states() == ["idle"] * len(hosts), 20, "all Slurm nodes idle")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{lab.log_of(*self._names)}") from None

    def _start_munge(self):
        with open(f"{lab.FOLDER}/munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(os.urandom(128))
        files = [f"--{kind}={lab.FOLDER}/{name}" for kind, name in (
            ("key-file", "munge.key"), ("socket", "munge.socket"), ("pid-file", "munged.pid"),
            ("log-file", "munged.log"), ("seed-file", "munged.seed"))]
        lab.start_daemon(["munged", "--foreground", *files], "munged")
        lab.until(lambda: os.path.exists(f"{lab.FOLDER}/munge.socket"), 20, "munged")

    def _states(self):
        sinfo = lab.Program(["sinfo", "--noheader", "--Node", "--format=%T"], self.env)
        return sinfo.out.split() if sinfo.finish(20) == 0 else []


def _controller_listens():
    try:
        with socket.create_connection((lab.BRIDGE_ADDRESS, PORT), timeout=1):
            return True
    except OSError:
        return False
