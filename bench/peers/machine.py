"""What makes numbers lie on a shared or virtual machine: how far apart the processors are, and what else runs.

On a virtual machine the hypervisor moves the virtual CPUs closer together or further apart, unseen but for the time that
a flag takes from one to the other; results of one placement say nothing about those of the other.
"""

import os
import platform
import resource
import subprocess
import time

# Between the two clusters seen: one shared last-level cache (about 50 ns), and two (about 245 ns).
NEAR_BELOW_NS = 120
# One process's worth of clock ticks: shorter rounds cannot tell less from nothing.
LEAST_DISTURBANCE_S = 0.03
LABELS = ("near", "far", "mixed", "disturbed")


class Distance:
    """Asks the program cpu_distance."""

    def __init__(self, program, cpus):
        allowed = sorted(os.sched_getaffinity(0))
        self.cpus = cpus or (allowed[:2] if len(allowed) > 1 else [])
        self.program = program

    def nanoseconds(self):
        if not self.cpus:
            return 0.0  # One processor is near itself.
        command = [self.program, *map(str, self.cpus)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return float(done.stdout)


def place(nanoseconds):
    return "near" if nanoseconds < NEAR_BELOW_NS else "far"


def label(before_ns, after_ns, others_cores, others_s, tolerated_cores):
    """What a round is called; only rounds of one name are compared."""
    if others_cores > tolerated_cores and others_s > LEAST_DISTURBANCE_S:
        return "disturbed"
    return place(before_ns) if place(before_ns) == place(after_ns) else "mixed"


def _idle_s():
    """Seconds that the processors, and how many they are, have spent idle."""
    with open("/proc/stat", encoding="ascii") as opened:
        lines = opened.read().splitlines()
    fields = lines[0].split()
    cpus = sum(1 for line in lines if line.startswith("cpu") and line[3].isdigit())
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK"), cpus


def _used_s(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            fields = opened.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """How much the processors did, beyond what `pids` and this process did; time stolen by the hypervisor counts."""

    def __init__(self, pids):
        self.pids = pids
        self.own_s = self._own()
        self.idle_s, self.cpus = _idle_s()
        self.begin = time.monotonic()

    def _own(self):
        used = sum(_used_s(pid) for pid in self.pids)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            used += usage.ru_utime + usage.ru_stime
        return used

    def others(self):
        """Returns (cores, seconds) that others used since the start."""
        wall = time.monotonic() - self.begin
        idle_s, _ = _idle_s()
        seconds = max(0.0, wall * self.cpus - (idle_s - self.idle_s) - (self._own() - self.own_s))
        return seconds / max(wall, 1e-6), seconds


def facts():
    model = ""
    with open("/proc/cpuinfo", encoding="utf-8") as opened:
        for line in opened:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}
