"""The ranks of one library, as many processes on each host, which take commands together (rank.cc says which)."""

import contextlib
import os
import secrets
import selectors
import subprocess
import time

import hosts as lab

TITLES = {"annulus": "Annulus", "ring": "Annulus (ring)", "gloo": "Gloo (ring)", "server": "parameter server"}
PROGRAMS = {"annulus": "annulus", "ring": "annulus", "gloo": "gloo", "server": "server"}
_ALGORITHM = {"ring": {"ANNULUS_ALGORITHM": "ring"}}
_FOREIGN = ("ANNULUS_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCH", "MASTER_")
# Variables of the user's own that may be worth a try.
_SETTINGS = tuple(f"ANNULUS_{name}" for name in ("LOG", "SMALL_BYTES", "SPIN_US", "SLICE_BYTES", "CHANNELS", "TCP_SOCKETS"))


def own_settings():
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def _shared_cores(count):
    """Ranks on hosts of their own believe that they have the cores to themselves; here they do not."""
    return {"SPIN_US": "0"} if count > os.cpu_count() else {}


class RankFailed(Exception):
    """A rank ended, or did not answer in time; the text says which and why."""


def _words(library, rank, count, folder):
    """What a rank's driver wants on its command line."""
    return {
        "annulus": [],
        "ring": [],
        "gloo": [str(rank), str(count), lab.address(rank), folder],
        "server": [str(rank), str(count), lab.address(0)],
    }[library]


class Ranks:
    """`per_host` ranks of `library` on each host, from the program in the folder `programs`; a context manager. Ranks are placed in
    blocks, or dealt out to the hosts in turn."""

    def __init__(self, library, hosts, programs, per_host=1, in_turn=False):
        self.library = library
        self._processes = []
        count = hosts.count * per_host
        self._lines = [b""] * count  # What came of a rank's next line.
        self._selector = selectors.DefaultSelector()
        folder = f"{lab.FOLDER}/{library}{secrets.token_hex(4)}"
        os.mkdir(folder)
        self._errors = folder + "/errors"
        os.mkdir(self._errors)
        os.mkdir(folder + "/store")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        environment.update({f"ANNULUS_{name}": value for name, value in {
            "SIZE": str(count), "RENDEZVOUS": f"{lab.address(0)}:29500", "JOB_KEY": secrets.token_hex(16), **_shared_cores(count)}.items()})
        environment.update(own_settings())
        environment.update(_ALGORITHM.get(library, {}))
        for rank in range(count):
            host = rank % hosts.count if in_turn else rank // per_host
            command = hosts.command(host, f"{programs}/{PROGRAMS[library]}_rank", *_words(library, rank, count, folder + "/store"))
            with open(f"{self._errors}/{rank}", "wb") as errors:
                process = subprocess.Popen(command, env={**environment, "ANNULUS_RANK": str(rank)}, stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
            self._processes.append(process)
            self._selector.register(process.stdout, selectors.EVENT_READ, rank)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # A command that it did not read any more.
                process.stdin.close()
            process.stdout.close()
        self._selector.close()

    def command(self, line, seconds):
        """Gives all ranks a command; returns the words of their answers, by rank."""
        for rank, process in enumerate(self._processes):
            try:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
            except OSError:
                raise RankFailed(self._why(rank, "ended")) from None
        answers = {}
        deadline = time.monotonic() + seconds
        while len(answers) < len(self._processes):
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = [str(rank) for rank in range(len(self._processes)) if rank not in answers]
                raise RankFailed(f"{TITLES[self.library]}: no answer from rank {', '.join(silent)} within {seconds:.0f} s")
            for key, _ in ready:
                self._read(key.data, answers)
        return [answers[rank] for rank in range(len(self._processes))]

    def _read(self, rank, answers):
        data = os.read(self._processes[rank].stdout.fileno(), 4096)
        if not data:
            raise RankFailed(self._why(rank, "ended"))
        self._lines[rank] += data
        if self._lines[rank].endswith(b"\n"):
            answers[rank] = self._lines[rank].decode().split()
            self._lines[rank] = b""

    def _why(self, rank, what):
        """The rank's last words; those of the others, which may have noticed first, come after it."""
        try:
            status = f" with status {self._processes[rank].wait(timeout=2)}"
        except subprocess.TimeoutExpired:
            status = ""
        text = f"{TITLES[self.library]}: rank {rank} {what}{status}"
        for each in [rank] + [other for other in range(len(self._processes)) if other != rank]:
            with open(f"{self._errors}/{each}", encoding="utf-8", errors="replace") as errors:
                said = errors.read().strip().splitlines()
            if said:
                text += f"\n  rank {each} said: {said[-1]}"
        return "\n".join(text.splitlines()[:6])

    def start(self, seconds=120):
        """All join; returns the seconds that the slowest took."""
        return max(float(words[1]) for words in self.command("start", seconds))

    def prepare(self, size, seconds=120):
        self.command(f"prepare {size}", seconds)

    def time(self, calls, seconds):
        """Seconds per call of the slowest rank, and the ranks' CPU seconds per call."""
        # Time for all to have read the command, at 64 ranks on two cores.
        at = time.monotonic_ns() + 20_000_000 + 500_000 * len(self._processes)
        answers = [[float(word) for word in words[1:]] for words in self.command(f"time {calls} {at}", seconds)]
        slowest = max(words[1] - words[0] for words in answers)
        self.command("check", seconds)
        return slowest / 1e9 / calls, sum(words[2] for words in answers) / calls

    def memory(self):
        """KiB per rank: the largest resident set of a rank, and the part of it that no other process shares."""
        found = {"VmRSS": 0, "RssAnon": 0}
        for process in self._processes:
            with open(f"/proc/{process.pid}/status", encoding="utf-8") as status:
                for line in status:
                    name, _, value = line.partition(":")
                    if name in found:
                        found[name] = max(found[name], int(value.split()[0]))
        return found["VmRSS"], found["RssAnon"]
