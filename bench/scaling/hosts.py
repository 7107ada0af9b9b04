"""Hosts that are network namespaces: each has one link of a given rate to a bridge. No trace of them stays behind.

A program calls enter() first. It is then started again in network, mount and process namespaces of its own, where the bridge is, with a
/run of its own. When the first process in there ends, the kernel ends all others, and with the last one go the namespaces and their links.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys

FOLDER = "/run/scaling"  # On a tmpfs that only we see.
BURST_BYTES = 131072  # More than one GSO packet (64 KiB and headers): tbf cuts larger ones up, which costs more than all else.
QUEUE_BYTES = 1048576
_INSIDE = "ANNULUS_SCALING_INSIDE"
_NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
_PR_SET_PDEATHSIG = 1
_TOOLS = ("unshare", "nsenter", "ip", "tc", "bridge")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def missing():
    """Why there can be no hosts here, or an empty string."""
    os.environ["PATH"] = PATH
    absent = [tool for tool in _TOOLS if not shutil.which(tool)]
    if absent:
        return f"no {', '.join(absent)}: install Debian's iproute2 and util-linux"
    probe = subprocess.run(["unshare", *_NAMESPACES, "ip", "link", "add", "probe", "type", "veth"], capture_output=True, text=True,
                           check=False)
    if probe.returncode != 0:
        return (f"cannot make network namespaces ({probe.stderr.strip()}): run it as root, in a container with"
                " CAP_SYS_ADMIN and CAP_NET_ADMIN")
    return ""


def enter():
    """Returns inside the namespaces. Outside it never returns: it runs the program inside, and exits with its status."""
    if os.environ.pop(_INSIDE, None):
        os.environ["PATH"] = PATH
        run("mount", "-t", "tmpfs", "-o", "mode=755", "scaling", "/run")
        os.mkdir(FOLDER)
        run("ip", "link", "set", "lo", "up")
        return
    inside = subprocess.Popen(["unshare", *_NAMESPACES, sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]],
                              env={**os.environ, _INSIDE: "1"}, preexec_fn=_die_with_parent)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.exit(inside.wait())
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(_stop(inside))
    finally:
        inside.kill()


def _interrupt(*_):
    raise KeyboardInterrupt


def _stop(inside):
    """Tells the program inside, which may know already, and lets it write what it has."""
    try:
        with open(f"/proc/{inside.pid}/task/{inside.pid}/children", encoding="utf-8") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGINT)
    except OSError:
        pass  # It has ended.
    try:
        return inside.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return 130


def _die_with_parent():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(*command, text=None):
    """Runs a command that must succeed."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _number(host):
    return f"{host // 250}.{host % 250 + 1}"


def address(host):
    return f"10.77.{_number(host)}"


def _hardware(host):
    return f"02:00:00:00:{host // 256:02x}:{host % 256:02x}"


class Hosts:
    """`count` hosts, one link each, shaped to `rate` (as tc writes it, such as 100mbit) in both directions; "none" leaves it unshaped."""

    def __init__(self, count, rate):
        self.count = count
        links = ["link add br0 type bridge mcast_snooping 0", "link set br0 up"]
        for host in range(count):
            run("ip", "netns", "add", f"host{host}")
            links.append(f"link add to{host} type veth peer name eth0 address {_hardware(host)} netns host{host}")
            links.append(f"link set to{host} master br0 up")
        run("ip", "-batch", "-", text="\n".join(links))
        run("bridge", "-batch", "-", text="\n".join(f"fdb replace {_hardware(host)} dev to{host} master static" for host in range(count)))
        if rate != "none":
            run("tc", "-batch", "-", text="\n".join(_shape(f"to{host}", rate) for host in range(count)))
        for host in range(count):
            self._set_up(host, rate)

    def _set_up(self, host, rate):
        # All neighbours are known for good: the kernel has one table for all namespaces, too small for a full mesh of many.
        lines = [f"addr add {address(host)}/16 dev eth0", "link set lo up", "link set eth0 up"]
        lines += [f"neigh replace {address(peer)} lladdr {_hardware(peer)} dev eth0 nud permanent"
                  for peer in range(self.count) if peer != host]
        run("ip", "-n", f"host{host}", "-batch", "-", text="\n".join(lines))
        if rate != "none":
            run("tc", "-n", f"host{host}", "-batch", "-", text=_shape("eth0", rate))

    def command(self, host, *words):
        """The words that run a command on a host; its process is the one started."""
        return ["nsenter", f"--net=/run/netns/host{host}", *words]

    def remove(self):
        for host in range(self.count):
            run("ip", "link", "del", f"to{host}")
            run("ip", "netns", "del", f"host{host}")
        run("ip", "link", "del", "br0")


def _shape(device, rate):
    return f"qdisc add dev {device} root tbf rate {rate} burst {BURST_BYTES} limit {QUEUE_BYTES}"
