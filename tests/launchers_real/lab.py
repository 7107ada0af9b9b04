"""A small private network for tests with real launchers: hosts that are network namespaces, daemons, and no trace after.

A test calls enter() first. It is then started again in mount, network, host name and process namespaces of its own, with
/run, /etc/hosts and root's home of its own. Killing the first process in there ends every process that the test or its daemons have
started, so that nothing survives the test, however it ends. Needs root; without it, enter() says so and returns False.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

FOLDER = "/run/lab"  # On a tmpfs that only the test sees.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"  # Daemons lie in sbin.
BRIDGE_ADDRESS = "10.77.0.254"  # The address of the test itself, which stands beside the hosts.
_INSIDE = "ANNULUS_TESTS_LAB"
_PR_SET_PDEATHSIG = 1
_daemons = []  # Kept, as they run for as long as the lab.
_NAMESPACES = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child"]
# What a launcher or a user around the test may have set, and must not reach the ranks.
_FOREIGN = ("ANNULUS_", "OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "MASTER_", "HYDRA_", "TORCH", "SSH_")


def enter(seconds):
    """Returns True inside the lab, False where there can be none. Outside it never returns: it runs the test inside,
    for `seconds` at most, and exits with its status."""
    if os.environ.pop(_INSIDE, None):
        _set_up()
        return True
    probe = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        print(f"\n{'*' * 100}\nNO LAB HERE: the tests that need network namespaces are SKIPPED: {probe.stderr.strip()}\n"
              f"Run them as root, in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN.\n{'*' * 100}\n", flush=True)
        return False
    command = ["unshare", *_NAMESPACES, sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    inside = subprocess.Popen(command, env={**os.environ, _INSIDE: "1"}, preexec_fn=_die_with_parent)
    try:
        sys.exit(inside.wait(timeout=seconds))
    except subprocess.TimeoutExpired:
        print(f"the lab was still busy after {seconds} s", file=sys.stderr)
        sys.exit(1)
    finally:
        inside.kill()


def _die_with_parent():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _set_up():
    # unshare is our parent; were it gone, the kernel would have killed us, the first process of the namespace.
    run("mount", "-t", "tmpfs", "-o", "mode=755", "lab", "/run")
    os.mkdir(FOLDER)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "addr", "add", f"{BRIDGE_ADDRESS}/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    run("hostname", "lab")
    with open(f"{FOLDER}/hosts", "w", encoding="utf-8") as hosts:
        hosts.write(f"127.0.0.1 localhost\n::1 localhost\n{BRIDGE_ADDRESS} lab\n")
    run("mount", "--bind", f"{FOLDER}/hosts", "/etc/hosts")
    # A home without anybody's settings, and a shell that all machines have.
    os.mkdir(f"{FOLDER}/home")
    with open("/etc/passwd", encoding="utf-8") as passwd:
        others = [line for line in passwd if not line.startswith("root:")]
    with open(f"{FOLDER}/passwd", "w", encoding="utf-8") as passwd:
        passwd.writelines([f"root:x:0:0:root:{FOLDER}/home:/bin/bash\n", *others])
    run("mount", "--bind", f"{FOLDER}/passwd", "/etc/passwd")


def run(*command, seconds=20):
    """Runs a command that must succeed; returns its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def processes(wanted):
    """The command lines of all processes, by pid, of which `wanted` holds, given command line and environment."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as cmdline, open(f"/proc/{pid}/environ", "rb") as environ:
                words = cmdline.read().decode(errors="replace").split("\0")[:-1]
                if wanted(words, environ.read().decode(errors="replace").split("\0")):
                    found[int(pid)] = words
        except OSError:  # It has just ended.
            continue
    return found


def until(condition, seconds, what):
    """Asks `condition` again and again until it holds; returns what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        select.select([], [], [], 0.02)


def environment(**variables):
    """The test's own environment, less what might confuse a rank, and `variables`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    clean.update({"HOME": "/tmp", "PATH": PATH, **variables})
    return clean


class Host:
    """A network namespace with one interface on the bridge, and a name that everybody can look up."""

    def __init__(self, name, number):
        self.name = name
        self.address = f"10.77.0.{number}"
        self.cable = f"to-{name}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", self.cable, "master", "br0", "up")
        run("ip", "-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        with open(f"{FOLDER}/hosts", "a", encoding="utf-8") as hosts:
            hosts.write(f"{self.address} {name}\n")

    def command(self, *command, hidden="/mnt"):
        """The words that run `command` on this host, under its name. It finds the folder `hidden` empty."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--uts", "--mount", "sh", "-c",
                'hostname "$0" && mount -t tmpfs hidden "$1" && shift && exec "$@"', self.name, hidden, *command]

    def cut_cable(self):
        run("ip", "link", "set", self.cable, "down")

    def mend_cable(self):
        run("ip", "link", "set", self.cable, "up")


class Program:
    """A program that runs beside the test; both its streams are kept, apart."""

    def __init__(self, command, env=None, cwd=None, stdin=None):
        self.process = subprocess.Popen(command, env=env or environment(), cwd=cwd, stdin=stdin or subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self._streams = {self.process.stdout.fileno(): bytearray(), self.process.stderr.fileno(): bytearray()}
        self._out, self._err = self._streams.values()
        self._open = set(self._streams)

    @property
    def out(self):
        return self._out.decode(errors="replace")

    @property
    def err(self):
        return self._err.decode(errors="replace")

    def lines_of(self, rank):
        """The lines of a rank's standard output, which annulus-run has prefixed."""
        prefix = f"[{rank}] "
        return [line[len(prefix):] for line in self.out.splitlines() if line.startswith(prefix)]

    def await_lines(self, count, seconds=20):
        """Reads until standard output has `count` whole lines."""
        self._read(lambda: self.out.count("\n") >= count, seconds)
        if self.out.count("\n") < count:
            raise TimeoutError(f"fewer than {count} lines within {seconds} s:\n{self.out}{self.err}")

    def close_out(self):
        """Stops reading standard output, as `head` does."""
        self._open.discard(self.process.stdout.fileno())
        self.process.stdout.close()

    def finish(self, seconds=20):
        """Reads to the end; returns the exit status, negative for a signal."""
        deadline = time.monotonic() + seconds
        self._read(lambda: not self._open, seconds)
        try:
            status = self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            self.process.stdout.close()
            self.process.stderr.close()
            return status
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise TimeoutError(f"{self.process.args}: still running after {seconds} s:\n{self.out}{self.err}") from None

    def _read(self, enough, seconds):
        deadline = time.monotonic() + seconds
        while self._open and not enough() and time.monotonic() < deadline:
            for stream in select.select(list(self._open), [], [], 0.1)[0]:
                data = os.read(stream, 65536)
                self._streams[stream].extend(data)
                if not data:
                    self._open.remove(stream)


def start_daemon(command, name, env=None):
    """Starts a daemon in the foreground; its output goes to FOLDER/name.out. It ends with the lab."""
    with open(f"{FOLDER}/{name}.out", "wb") as output:
        _daemons.append(subprocess.Popen(command, env=env or environment(), cwd=FOLDER, stdin=subprocess.DEVNULL,
                                         stdout=output, stderr=subprocess.STDOUT))


def log_of(*names):
    """What daemons wrote, for the message of a failure."""
    text = ""
    for name in names:
        with open(f"{FOLDER}/{name}.out", encoding="utf-8", errors="replace") as output:
            text += f"--- {name}\n{output.read()}"
    return text
