"""What the guests of the lab boot from: Debian's kernel with its modules, and a first file system that leads to the host's.

Nothing of it is installed: the kernel's package is unpacked into a folder of the cache, once for each version.
"""

import lzma
import os
import re
import shutil
import subprocess
import tempfile

CACHE = os.path.expanduser("~/.cache/annulus/verbs_lab")
# What of the kernel's modules is needed: the device, the networks and file systems of guests, faults of networks.
MODULES = (
    "drivers/infiniband/core drivers/infiniband/sw drivers/net/dummy.ko drivers/net/virtio_net.ko drivers/net/net_failover.ko "
    "drivers/virtio net fs/9p fs/fscache fs/netfs fs/overlayfs fs/configfs lib crypto arch/x86/crypto"
).split()
FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")  # What the first file system itself needs.
FIRST_FOLDERS = "bin modules proc sys dev merged lower layer".split()


# Programs of Debian's packages that the host and the guests use.
PROGRAMS = "apt-cache apt-get dpkg depmod modprobe cpio gzip tar qemu-system-x86_64 rdma tc ssh sshd".split()
# What apt-get says when it cannot reach an archive, and not when an archive lacks a package.
UNREACHED = re.compile(
    "Could not resolve|Temporary failure|Could not connect|Unable to connect|Cannot initiate the connection|Connection (?:failed|timed out|refused)"
)


class Unavailable(Exception):
    """The lab cannot be set up on this machine, which lacks Debian's packages or a way to them; the text says why."""


class Broken(Exception):
    """Setting up the lab failed for another reason, which the text says: a fault."""


def output(*command, **more):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more).stdout
    except subprocess.CalledProcessError as failed:
        raise Broken(f"{' '.join(command[:3])}: {failed.stderr.strip()[-1000:]}") from failed


def _require_programs():
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"  # Where guests look too.
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    missing += [file for file in ("/bin/busybox",) if not os.path.exists(file)]
    if missing:
        raise Unavailable(f"there is no {', '.join(missing)}: third_party/setup/install verbs")
    os.environ["PATH"] = path


class Machine:
    """The parts of one kernel version: paths of kernel, first file system and modules."""

    def __init__(self, version):
        self.version = version
        self.folder = os.path.join(CACHE, version)
        self.kernel = os.path.join(self.folder, "vmlinux")
        self.first_files = os.path.join(self.folder, "first.cpio.gz")
        self.modules = os.path.join(self.folder, "lib/modules")

    def exists(self):
        return os.path.exists(os.path.join(self.folder, "complete"))


def prepare():
    """Returns the machine, which is made unless an earlier call made it."""
    _require_programs()
    machine = Machine(_kernel_version())
    if not machine.exists():
        shutil.rmtree(machine.folder, ignore_errors=True)
        os.makedirs(machine.folder)
        _unpack(machine)
        _write_kernel(machine)
        with open(os.path.join(machine.folder, "complete"), "w", encoding="utf-8"):
            pass
    _write_first_files(machine)  # Each time: it takes a moment, and init.sh may have changed.
    return machine


def _kernel_version():
    try:
        depends = output("apt-cache", "depends", "linux-image-amd64")
    except Broken as unknown:
        if "No packages found" not in str(unknown):
            raise
        raise Unavailable("apt knows no linux-image-amd64: no list of an archive that has it was ever fetched") from unknown
    found = re.search(r"Depends: linux-image-(\S+)", depends)
    if not found:
        raise Broken(f"apt tells no version of linux-image-amd64: {depends[-300:]}")
    return found.group(1)


def _download(package, folder):
    try:
        output("apt-get", "download", "-q", package, cwd=folder)
    except Broken as failed:
        if UNREACHED.search(str(failed)):
            raise Unavailable(str(failed)) from failed
        raise
    return os.path.join(folder, os.listdir(folder)[0])


def _unpack(machine):
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o777)  # apt downloads as a user of its own.
        package = _download(f"linux-image-{machine.version}", scratch)
        modules = f"./lib/modules/{machine.version}"
        wanted = [f"./boot/vmlinuz-{machine.version}", f"{modules}/modules.*", *(f"{modules}/kernel/{name}" for name in MODULES)]
        with subprocess.Popen(("dpkg", "--fsys-tarfile", package), stdout=subprocess.PIPE) as files:
            output("tar", "-x", "-C", machine.folder, "--no-same-owner", "--wildcards", *wanted, stdin=files.stdout)
    output("depmod", "-b", machine.folder, machine.version)


def _write_kernel(machine):
    """Unpacks the kernel, which takes an emulated processor several seconds at each boot."""
    with open(os.path.join(machine.folder, f"boot/vmlinuz-{machine.version}"), "rb") as packed:
        image = packed.read()
    start = image.find(b"\xfd7zXZ\0")
    if start >= 0:
        image = lzma.LZMADecompressor().decompress(image[start:])
    with open(machine.kernel, "wb") as kernel:
        kernel.write(image)


def _write_first_files(machine):
    with tempfile.TemporaryDirectory() as folder:
        for name in FIRST_FOLDERS:
            os.mkdir(os.path.join(folder, name))
        shutil.copy("/bin/busybox", os.path.join(folder, "bin"))
        shutil.copy(os.path.join(os.path.dirname(__file__), "init.sh"), os.path.join(folder, "init"))
        os.chmod(os.path.join(folder, "init"), 0o755)
        order = []
        for name in FIRST_MODULES:
            lines = output("modprobe", "-d", machine.folder, "-S", machine.version, "--show-depends", name).splitlines()
            for line in lines:
                path = line.split()[1] if line.startswith("insmod ") else ""
                if path and os.path.basename(path) not in order:
                    order.append(os.path.basename(path))
                    shutil.copy(path, os.path.join(folder, "modules"))
        with open(os.path.join(folder, "modules/order"), "w", encoding="utf-8") as listed:
            listed.write("\n".join(order) + "\n")
        pack = f"find . | cpio -o -H newc --quiet | gzip -1 >'{machine.first_files}'"
        output("sh", "-c", pack, cwd=folder)
