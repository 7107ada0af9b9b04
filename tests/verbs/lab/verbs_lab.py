#!/usr/bin/env python3
"""Runs the verbs transport on Linux's soft-RoCE driver, in virtual machines; and, over TCP, pauses such machines.

  verbs_lab.py --bin FOLDER [--only NAME] [--counts FILE]

FOLDER holds annulus-run, annulus-perf and verbs_device_contract as bazel-bin does. Each case must pass and must also
have sent its data by the RDMA device, unless it is about TCP: the device's own counters show a job that went over TCP unnoticed.
The case long_paused_host, of two minutes, runs only by name.
Exit status: 0 all passed, 1 some failed, 77 there can be no lab here.
"""

import argparse
import os
import shutil
import sys
import time

import guests
import machine

PACKET_BYTES = 4096  # The path's MTU.
BY_NAME = ("long_paused_host",)


class Case:
    """A test: its name, a script for each guest, and what each guest must show: bytes sent by RDMA, texts in its log."""

    def __init__(self, name, scripts, least_bytes, texts=(), loss="", dies=None):
        self.name = name
        self.scripts = scripts
        self.least_bytes = least_bytes
        self.texts = texts
        self.loss = loss  # Of the packets that each guest sends.
        self.dies = dies  # The guest that the case itself takes down.

    def run(self, booted):
        """Returns what is wrong; "" when nothing is."""
        ran, folder = guests.run(booted, self.scripts, limit_s=240, loss=self.loss, dies=self.dies)
        wrong = "".join(self._judge(guest) for guest in ran if guest.index != self.dies)
        shutil.rmtree(folder, ignore_errors=True)
        return wrong

    def _judge(self, guest):
        result, log = guest.result(), guest.read("log")
        least = self.least_bytes // PACKET_BYTES
        if result != 0:
            wrong = f"{result}\n" + guest.read("console")[-1500:] + guest.read("qemu")
            log = log or guest.read("rank")  # A case that was cut off has not shown it yet.
        elif guest.packets() < least:
            wrong = f"{guest.packets()} RDMA packets, at least {least} were due\n"
        else:
            missing = [text for text in self.texts if text not in log]
            wrong = f"its log lacks {missing}\n" if missing else ""
        return f"guest {guest.index}: {wrong}{log[-4000:]}" if wrong else ""


class Programs:
    """Scripts that run the programs below `folder`."""

    def __init__(self, folder):
        self.launcher = os.path.join(folder, "launcher/annulus-run")
        self.program = os.path.join(folder, "bench/perf/annulus-perf")
        self.perf = self.program + " -w 1 --limit 0"
        self.contract = os.path.join(folder, "tests/transport/verbs/verbs_device_contract")

    @staticmethod
    def rank(index, size, command, host=guests.address(0)):
        settings = f"ANNULUS_TRANSPORT=verbs ANNULUS_LOG=info ANNULUS_RANK={index} ANNULUS_SIZE={size} "
        return settings + f"ANNULUS_RENDEZVOUS={host}:29999 ANNULUS_JOB_KEY=the-key-of-the-verbs-lab {command}"

    def all_collectives(self):
        return f"ANNULUS_TRANSPORT=verbs {self.launcher} -np 3 {self.perf} --collective all -b 8 -e 64K -f 32 -n 3\n"

    def two_devices(self):
        """A job whose links have two rails, each of which must have sent a fifth of some 20 MB."""
        second = "ip link add eth1 type dummy && ip addr add 10.78.0.1/24 dev eth1 && ip link set eth1 mtu 4200 up || exit 9\n"
        device = "rdma link add rxe1 type rxe netdev eth1 || exit 9\n"
        # The address becomes a GID a moment later; the case's limit ends the wait.
        device += "until grep -q 0000:0000:0000:0000:0000:ffff /sys/class/infiniband/rxe1/ports/1/gids/1; do sleep 0.1; done\n"
        ports = "export ANNULUS_TRANSPORT=verbs ANNULUS_VERBS_DEVICE=rxe0,rxe1 ANNULUS_LOG=info\n"
        job = f"{self.launcher} -np 2 {self.perf} -b 1M -e 1M -n 8 || exit 1\n"
        counter = "/sys/class/infiniband/$each/ports/1/hw_counters/sent_pkts"
        counts = f"for each in rxe0 rxe1; do\necho $each sent $(cat {counter}) packets\n[ $(cat {counter}) -ge 1000 ] || exit 8\ndone\n"
        return second + device + ports + job + counts

    def refused(self):
        return f"ANNULUS_TRANSPORT=verbs {self.launcher} -np 2 {self.perf} -b 8 -e 8 && exit 1; exit 0\n"

    def little_memory(self):
        """A job of a user with a low limit, who may not look into the folder of the programs."""
        copy = f"mkdir -m 755 /run/programs\ncp {self.launcher} {self.program} /run/programs\ncd /run/programs\n"
        nobody = "ulimit -l 64\nsetpriv --reuid 65534 --clear-groups --inh-caps=-all env ANNULUS_TRANSPORT=verbs "
        return copy + nobody + "./annulus-run -np 2 ./annulus-perf -b 8 -e 8 && exit 1\nexit 0\n"

    def kernel_tls(self):
        """Whether the kernel can seal for OpenSSL, and that it does not for Annulus."""
        script = os.path.join(os.path.dirname(os.path.realpath(__file__)), "kernel_tls.py")
        job = f"{self.launcher} -np 2 {self.perf} -b 64K -e 64K -n 3"
        return f"export ANNULUS_TRANSPORT=tcp ANNULUS_ENCRYPT=required\npython3 {script} {job}\n"

    def killed_rank(self):
        """Ranks 0 and 2 must fail, by themselves, when rank 1 is killed in the middle of a call."""
        command = f"{self.perf} -b 256K -e 256K -n 100000"
        start = [self.rank(index, 3, command, "127.0.0.1") + f" >/out/rank{index} 2>&1 &\npid{index}=$!\n" for index in range(3)]
        return (
            "".join(start)
            + "until grep -q 'link to rank' /out/rank2; do sleep 0.2; done\nsleep 3\nkill -9 $pid1\n"
            + "wait $pid0 && exit 1\nwait $pid2 && exit 1\ncat /out/rank0 /out/rank2\n"
        )

    def registered(self, index):
        """A rank on a guest of its own whose buffers are registered, so that the ring reads slices of 32 KiB from the peer's.

        Counts the packets that bring the middle of what is read: opcode 14, the first byte behind the UDP header.
        """
        count = "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff"
        count += " match ip dport 4791 0xffff match u8 14 0xff at 28 action ok || exit 9\n"
        job = self.two_hosts(index, buffers=" -R 1").replace("exit $status\n", "")
        shows = "tc -s filter show dev eth0 ingress\n"
        enough = "packets=$(tc -s filter show dev eth0 ingress | grep -o 'bytes [0-9]* pkt' | tail -1 | grep -o '[0-9]*')\n"
        enough += "echo read by $packets packets\n[ $packets -ge 1000 ] || exit 8\nexit $status\n"
        return "export ANNULUS_ALGORITHM=ring\n" + count + job + shows + enough

    def two_hosts(self, index, during="", buffers=""):
        """A rank on a guest of its own, in the middle of whose work `during` is run."""
        command = f"{self.perf}{buffers} -b 64 -e 64K -f 1024 -n 100 >/out/rank 2>&1 &\npid=$!\n"
        wait = "until grep -q 'verbs rxe0' /out/rank; do sleep 0.1; done\nsleep 1\n" if during else ""
        return self.rank(index, 2, command) + wait + during + "\nwait $pid\nstatus=$?\ncat /out/rank\nexit $status\n"

    def goes_on(self, index, during):
        """A rank on a guest of its own, which works for a while after `during` has happened to one of them."""
        command = f"{self.perf} -b 64K -e 64K -n 1500 >/out/rank 2>&1"
        job = "{ " + self.rank(index, 2, command) + "\necho $? >/out/ended\n} &\n"
        begun = "until grep -q 'verbs rxe0' /out/rank; do sleep 0.1; done\nsleep 3\n"
        told = "until grep -q 'goes on, but more slowly, as tcp' /out/rank || [ -s /out/ended ]; do sleep 0.2; done\n"
        return job + begun + during + told + "wait\ncat /out/rank\nexit $(cat /out/ended)\n"

    def paused_host(self, index):
        """Ranks on guests of their own, joined by TCP, which are paused one after the other. Both go on, with right sums."""
        end = "[ $(grep -c error: /out/rank) = 0 ] && kill -0 $pid\nstatus=$?\ncat /out/rank\n"
        if index == 1:
            waits = "touch /together/turn\nuntil [ -e /together/done ]; do sleep 0.1; done\n"
            return self.over_tcp(1) + self.pause("stop", 8) + waits + end + "touch /together/seen\nexit $status\n"
        first = "until [ -e /together/turn ]; do sleep 0.1; done\n" + self.pause("freeze", 8)
        # Rank 0 prints a row for each size, with the number of wrong elements of two forms.
        more = "rows=$(grep -c float32 /out/rank)\nuntil [ $(grep -c float32 /out/rank) -gt $((rows + 3)) ]; do sleep 0.1; done\n"
        right = "awk '$3 == \"float32\" && $13 + $21 > 0 { exit 1 }' /out/rank || exit 9\n"
        done = "touch /together/done\nuntil [ -e /together/seen ]; do sleep 0.1; done\nexit $status\n"
        return self.over_tcp(0) + first + more + right + end + done

    def long_paused_host(self, index):
        """The rank of guest 1 is paused for so long that it counts as lost. Both must fail, and say what they know."""
        lost = "lost each other.*rank at fault: 1"
        words = lost if index == 0 else f"{lost}\\|rank at fault: 0"  # Rank 0 may have ended by then.
        named = f"wait $pid && exit 8\ncat /out/rank\ngrep -q '{words}' /out/rank\n"
        return self.over_tcp(index) + (self.pause("stop", 20) if index == 1 else "") + named

    @staticmethod
    def pause(how, seconds):
        return f"rm -f /out/resumed\necho {how} {seconds} >/out/pause\nuntil [ -e /out/resumed ]; do sleep 0.1; done\nsleep 2\n"

    def over_tcp(self, index):
        """A rank that works for minutes."""
        command = f"{self.perf} -b 128 -e 1M -i 128 -n 20 >/out/rank 2>&1 &\npid=$!\n"
        wait = "until grep -q 'link to rank' /out/rank; do sleep 0.1; done\nsleep 2\n"
        return self.rank(index, 2, command).replace("TRANSPORT=verbs", "TRANSPORT=tcp") + wait


def all_cases(folder):
    run = Programs(folder)
    blackout = "tc qdisc add dev eth0 root netem loss 100% limit 10000\nsleep 0.2\ntc qdisc del dev eth0 root\n"
    # Seven times a second: beginning and ending the blackout takes a slow guest a second as well.
    patient = "export ANNULUS_VERBS_TIMEOUT=18\n"
    fails = "\n[ $status -ne 0 ]"
    survivor = run.two_hosts(0).replace("exit $status", fails)
    verbs = ("verbs rxe0, port 1",)
    # RoCE is UDP to this port; the TCP connections live. What a guest sends must not be dropped by itself: rxe tries again
    # for ever what its own network refuses, and neither counts that as a retry nor reports it.
    no_roce = "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop\n"
    on_over_tcp = ("verbs rxe0, port 1", "goes on, but more slowly, as tcp eth0")
    without_copy = ("bytes of registered memory without a copy", "were read from its memory", "read by ")
    return [
        Case("contract", [run.contract], 10 << 20, ["[  PASSED  ]"]),
        Case("collectives", [run.all_collectives()], 2 << 20, ["wrong elements: 0"]),
        Case("two_devices", [run.two_devices()], 4 << 20, ["wrong elements: 0", "rxe0, port 1", "and rxe1, port 1"]),
        Case("port_down", ["ip link set eth0 down\n" + run.refused()], 0, ["rxe0, port 1 is down"]),
        Case("locked_memory", [run.little_memory()], 0, ["the limit on locked memory"]),
        Case("kernel_tls", [run.kernel_tls()], 0, ["Annulus, ANNULUS_ENCRYPT=required: the kernel seals 0 and opens 0"]),
        Case("killed_rank", [run.killed_rank()], 1 << 20, ["rank 1 died"]),
        Case("two_hosts", [run.two_hosts(0), run.two_hosts(1)], 1 << 20, verbs),
        Case("auto", [run.two_hosts(i).replace("TRANSPORT=verbs", "TRANSPORT=auto") for i in (0, 1)], 1 << 20, verbs),
        Case("registered", [run.registered(0), run.registered(1)], 1 << 20, verbs + without_copy),
        Case("two_hosts_with_loss", [run.two_hosts(0), run.two_hosts(1)], 1 << 20, verbs, loss="1%"),
        Case("registered_with_loss", [run.registered(0), run.registered(1)], 1 << 20, verbs + without_copy, loss="1%"),
        Case("blackout", [patient + run.two_hosts(0), patient + run.two_hosts(1, blackout)], 1 << 20, verbs),
        Case("no_roce", [run.goes_on(0, ""), run.goes_on(1, no_roce)], 1 << 20, on_over_tcp),
        Case("dead_host", [survivor, run.two_hosts(1, "echo b >/proc/sysrq-trigger")], 1 << 14, ["[rank at fault: 1]"], dies=1),
        Case("paused_host", [run.paused_host(0), run.paused_host(1)], 0, ["control connection"]),
        Case("long_paused_host", [run.long_paused_host(0), run.long_paused_host(1)], 0, ["link to rank"]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--counts", default="")
    options = parser.parse_args()
    try:
        booted = machine.prepare()
    except machine.Unavailable as reason:
        print(f"verbs lab: skipped: {reason}")
        return 77
    passed = failed = 0
    for case in all_cases(os.path.realpath(options.bin)):
        if options.only not in case.name or (not options.only and case.name in BY_NAME):
            continue
        begin = time.monotonic()
        wrong = case.run(booted)
        passed += not wrong
        failed += bool(wrong)
        print(f"verbs lab: {case.name:20} {'FAILED' if wrong else 'passed'} {time.monotonic() - begin:6.1f} s", flush=True)
        if wrong:
            print(wrong, flush=True)
    if options.counts:
        with open(options.counts, "w", encoding="utf-8") as counts:
            counts.write(f"{passed} {failed}\n")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
