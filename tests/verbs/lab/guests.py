"""Guests of the lab: virtual machines under QEMU, with an emulated processor, so that the host needs no right to virtualise.

A guest sees the host's files, read-only, and writes into a folder of its own on the host. A case is a shell script; its
exit status comes back through a file, so a guest that crashes is never taken for one that passed. A guest runs several
cases, since it takes longer to boot than most cases take.
"""

import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
MEGABYTES = 768  # Memory for each guest.
CASE_LIMIT_S = 150
BOOT_LIMIT_S = 120


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no guest outlives its test.


class Guest:
    """One guest, from its start to its result.

    A guest that writes "stop SECONDS" or "freeze SECONDS" into /out/pause is paused that long, and then finds /out/resumed:
    stopped by QEMU, its clock with it, as when it migrates; or frozen as a process, so that its clock leaps afterwards.
    """

    def __init__(self, machine, folder, index, count, wire, limit_s):
        self.index = index
        self.folder = os.path.join(folder, f"guest{index}")
        os.makedirs(os.path.join(self.folder, "modules", machine.version))
        shutil.copytree(os.path.join(machine.modules, machine.version), os.path.join(self.folder, "modules", machine.version), dirs_exist_ok=True)
        shutil.copy(os.path.join(HERE, "guest.sh"), self.folder)
        settings = {"GUEST": index, "GUESTS": count, "ADDRESS": address(index), "LIMIT": limit_s, "WORK": os.getcwd()}
        self._write("settings", "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()))
        self.command = self._command(machine, folder, count, wire)
        self.process = None
        self.resume_at = None
        self.resume = None

    def _write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def _command(self, machine, folder, count, wire):
        share = "local,path={},mount_tag={},security_model=none{}"
        # Another clock costs a trap at each reading; a busy host fails the check of the timer.
        append = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable no_timer_check"
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", "2" if count == 1 else "1"]
        command += ["-m", str(MEGABYTES), "-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{self.folder}/console"]
        command += ["-kernel", machine.kernel, "-initrd", machine.first_files, "-append", append]
        command += ["-virtfs", share.format("/", "host", ",readonly=on,multidevs=remap")]
        command += ["-virtfs", share.format(self.folder, "out", "")]
        command += ["-virtfs", share.format(os.path.join(folder, "together"), "together", "")]
        self.monitor = f"{wire}/monitor{self.index}"
        command += ["-qmp", f"unix:{self.monitor},server=on,wait=off"]
        if count > 1:  # Two guests, joined by a wire that loses nothing by itself.
            ends = f"local.type=unix,local.path={wire}/{self.index},remote.type=unix,remote.path={wire}/{1 - self.index}"
            command += ["-netdev", f"dgram,id=wire,{ends}"]
            command += ["-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:77:00:0{self.index + 1},host_mtu=4200,romfile="]
        return command

    def start(self, scripts):
        """Boots it, for cases by name, in their order."""
        for name, script in scripts.items():
            self._write(name + ".sh", f". {HERE}/case.sh\n{script}")
        self._write("plan", "".join(name + "\n" for name in scripts))
        with open(os.path.join(self.folder, "qemu"), "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=_die_with_parent
            )

    def advance_pause(self):
        """Pauses the guest if it asks for that, and lets it go on when its time is over."""
        if self.resume_at is None:
            words = self.read("pause").split()
            if len(words) != 2:
                return
            os.remove(os.path.join(self.folder, "pause"))
            stops = words[0] == "stop"
            self.resume = (lambda: self._command_monitor("cont")) if stops else (lambda: self.process.send_signal(signal.SIGCONT))
            if stops:
                self._command_monitor("stop")
            else:
                self.process.send_signal(signal.SIGSTOP)
            self.resume_at = time.monotonic() + float(words[1])
        elif time.monotonic() >= self.resume_at:
            self._write("resumed", "")
            self.resume()
            self.resume_at = None

    def _command_monitor(self, command):
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(10)
            monitor.connect(self.monitor)
            with monitor.makefile("rw") as lines:
                lines.readline()  # QEMU greets.
                for name in ("qmp_capabilities", command):
                    lines.write(json.dumps({"execute": name}) + "\n")
                    lines.flush()
                    answer = json.loads(lines.readline())
                    while "event" in answer:
                        answer = json.loads(lines.readline())
                    if "return" not in answer:
                        raise RuntimeError(f"QEMU refuses {name}: {answer}")

    def over(self):
        return bool(self.read("result")) or self.process.poll() is not None

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def result(self, case):
        """The exit status of the case; "crashed" or "setup" when it never ended or never began."""
        text = self.read(case + ".result").strip()
        if text.isdigit():
            return int(text)
        return "setup" if self.read("result").strip() == "setup" else "crashed"

    def packets(self, case):
        return int(self.read(case + ".packets").strip() or 0)

    def seconds(self, case, before):
        """Time from the end of the case `before`, or from the end of the boot, in seconds by the guest's clock."""
        begin, end = self.read(before + ".ended" if before else "booted").strip(), self.read(case + ".ended").strip()
        return float(end) - float(begin) if begin and end else 0.0


def address(index):
    return f"10.77.0.{index + 1}"


def run(machine, scripts, dies=None, limit_s=CASE_LIMIT_S):
    """Boots a guest for each element of `scripts`, which has its cases by name, until all but the guest `dies` are over. `limit_s`: of each case.

    Returns the guests, stopped, and the folder of their files.
    """
    folder = tempfile.mkdtemp(prefix="verbs_lab.")
    os.mkdir(os.path.join(folder, "together"))
    guests = []
    with tempfile.TemporaryDirectory(prefix="wire.") as wire:  # Names of sockets must be short.
        try:
            guests = [Guest(machine, folder, index, len(scripts), wire, limit_s) for index in range(len(scripts))]
            for guest, cases in zip(guests, scripts):
                guest.start(cases)
            end = time.monotonic() + BOOT_LIMIT_S + limit_s * len(scripts[0])
            while time.monotonic() < end and not all(guest.over() for guest in guests if guest.index != dies):
                for guest in guests:
                    guest.advance_pause()
                time.sleep(0.1)
        finally:
            for guest in guests:
                guest.stop()
    return guests, folder
