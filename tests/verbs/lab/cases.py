"""The cases of the lab: the script that each guest runs, and what it must show.

Scripts run one after the other in the same guests, each behind case.sh. PORT, another for each case, is free on both.
"""

import os

import guests

PACKET_BYTES = 4096  # The path's MTU.
# Seconds to a verdict, at most. On hosts of their own: 2 s for a rank that dies, 20 s for a host that vanishes
# (docs/failures.md), some 5 s for a path that is away for 2 s, which TCP tries again ever later, and at once for a port that is
# down. Timers take no longer on an emulated processor, but what it computes takes 10 to 20 times as long.
DEATH_S, PATH_S, HOST_S, REFUSAL_S = 20, 30, 45, 30
# What a link says that has left its device, and passes its tests all the same.
ON_OVER_TCP = "goes on, but more slowly, as tcp"


class Case:
    """A test: its name, a script for each guest, and what each guest must show: bytes sent by RDMA, texts in its log.

    The bytes are about half of what the case sends, counted as packets of the path's MTU; or what a job that fails has sent before.

    `dies`: the guest that the case itself takes down. `same`: what begins a text that ends with its line and must be the
    same in all guests' logs. `absent`: texts that no log may have.
    """

    def __init__(self, name, scripts, least_bytes, texts=(), dies=None, same="", absent=(ON_OVER_TCP,)):
        self.name = name
        self.scripts = scripts
        self.least_bytes = least_bytes
        self.texts = texts
        self.dies = dies
        self.same = same
        self.absent = absent

    def judge(self, ran):
        """Returns what is wrong with the guests; "" when nothing is."""
        wrong = "".join(self._judge(guest) for guest in ran if guest.index != self.dies)
        told = {self._told(guest.read(self.name + ".log")) for guest in ran} if self.same and not wrong else {""}
        return wrong or ("" if len(told) == 1 and (told != {""} or not self.same) else f"they say different things: {told}\n")

    def notes(self, ran):
        """What the case's functions said, and the packets sent by RDMA, of each guest."""
        for guest in ran:
            said = [line[5:] for line in guest.read(self.name + ".log").splitlines() if line.startswith("lab: ")]
            packets = [f"{guest.packets(self.name)} packets sent"] if guest.index != self.dies else []
            yield f"guest {guest.index}: " + ", ".join(packets + said)

    def _told(self, log):
        lines = [line[line.index(self.same):] for line in log.splitlines() if self.same in line]
        return lines[-1] if lines else ""

    def _judge(self, guest):
        result, log = guest.result(self.name), guest.read(self.name + ".log")
        least = self.least_bytes // PACKET_BYTES
        if result != 0:
            wrong = f"{result}\n" + guest.read("qemu")
            wrong += guest.read("console")[-1500:] if result in ("setup", "crashed") else ""
            log = log or guest.read("rank")  # A case that was cut off has not shown it yet.
        elif guest.packets(self.name) < least:
            wrong = f"{guest.packets(self.name)} RDMA packets, at least {least} were due\n"
        else:
            missing = [text for text in self.texts if text not in log]
            found = [text for text in self.absent if text in log]
            wrong = (f"its log lacks {missing}\n" if missing else "") + (f"its log has {found}\n" if found else "")
        return f"guest {guest.index}: {wrong}{log[-4000:]}" if wrong else ""


class Programs:
    """Scripts that run the programs below `folder`."""

    def __init__(self, folder):
        self.launcher = os.path.join(folder, "launcher/annulus-run")
        self.program = os.path.join(folder, "bench/perf/annulus-perf")
        self.perf = self.program + " -w 1 --limit 0"
        self.contract = os.path.join(folder, "tests/transport/verbs/verbs_device_contract")
        self.stream = os.path.join(folder, "tests/verbs/lab/verbs_stream")
        self.gpus = os.path.join(folder, "tests/verbs/lab/verbs_gpus")
        self.parts = os.path.join(folder, "tests/verbs/lab/verbs_parts")
        self.driver = os.path.join(folder, "tests/cuda/fake_driver/libcuda.so.1")

    @staticmethod
    def rank(index, size, command, host=guests.address(0), key="the-key-of-the-verbs-lab"):
        settings = f"ANNULUS_TRANSPORT=verbs ANNULUS_LOG=info ANNULUS_RANK={index} ANNULUS_SIZE={size} "
        return settings + f"ANNULUS_RENDEZVOUS={host}:$PORT ANNULUS_JOB_KEY={key} {command}"

    def all_collectives(self):
        """Each collective, with a type of each family; and one beside its limit, which is a raw exchange over the device."""
        types = "float32,int32,uint8,bfloat16,float64,float8_e4m3"
        start = f"ANNULUS_TRANSPORT=verbs {self.launcher}"
        every = f"{start} -np 3 {self.perf} --collective all -d {types} -b 64 -e 64K -f 1024 -n 1 || exit 1\n"
        # The limit's share of the time is the last column but three of a row.
        return every + f"{start} -np 2 {self.program} -w 1 -b 256K -e 256K -n 3\n"

    def algorithms(self):
        """Each algorithm that needs links alone, and one host."""
        job = f"ANNULUS_ALGORITHM=$each {self.launcher} -np 4 {self.perf} -b 1K -e 256K -f 256 -n 2 || exit 1\n"
        return f"export ANNULUS_TRANSPORT=verbs\nfor each in ring one_hop log_steps log_gather tree; do\necho $each\n{job}done\n"

    def calls_with_parts(self):
        """Calls that annulus-perf does not know, of three ranks and of two."""
        return f"ANNULUS_TRANSPORT=verbs {self.launcher} -np 3 {self.parts}\n"

    def packet_sizes(self):
        """The same job with each MTU of the path. The packets show which one it has."""
        job = f"before=$(sent)\nANNULUS_TRANSPORT=verbs {self.launcher} -np 2 {self.perf} -b 1M -e 1M -n 2 || exit 1\n"
        # The data alone needs as many packets as there are; half as many again come on top at most.
        checks = "packets=$(($(sent) - before))\necho MTU $path: $packets packets\n"
        checks += "[ $packets -ge $((data / path)) ] && [ $packets -le $((data * 5 / 2 / path)) ] || exit 8\n"
        sizes = "for pair in 1500:1024 2200:2048 4200:4096; do\npath=${pair#*:}\nip link set eth0 mtu ${pair%:*} || exit 9\n"
        return f"data={16 << 20}\n{sizes}{job}{checks}done\n"

    def two_devices(self):
        """A job whose links have two rails, each of which must have sent a fifth of some 20 MB."""
        second = "ip link add eth1 type dummy && ip addr add 10.78.0.1/24 dev eth1 && ip link set eth1 mtu 4200 up || exit 9\n"
        device = "rdma link add rxe1 type rxe netdev eth1 || exit 9\n"
        # The address becomes a GID a moment later; the case's limit ends the wait.
        device += "until grep -q 0000:0000:0000:0000:0000:ffff /sys/class/infiniband/rxe1/ports/1/gids/1; do sleep 0.1; done\n"
        ports = "export ANNULUS_TRANSPORT=verbs ANNULUS_VERBS_DEVICE=rxe0,rxe1 ANNULUS_LOG=info\n"
        job = f"{self.launcher} -np 2 {self.perf} -b 1M -e 1M -n 8 || exit 1\n"
        counts = "before=$(sent)\n", "at_least 1000 $(($(sent) - before)) packets by rxe0\nat_least 1000 $(sent_by rxe1) packets by rxe1\n"
        return second + device + ports + counts[0] + job + counts[1] + "rdma link delete rxe1\nip link del eth1\n"

    def device_memory(self):
        """A job whose buffers lie in the memory of a GPU, which the device here does not take: the GPU copies its slices."""
        return f"ANNULUS_TRANSPORT=verbs ANNULUS_LOG=info {self.launcher} -np 2 {self.gpus} {self.driver}\n"

    def port_down(self):
        """A job that must be refused at once."""
        job = f"ANNULUS_TRANSPORT=verbs {self.launcher} -np 2 {self.perf} -b 8 -e 8 &\n"
        return f"ip link set eth0 down\nfault\n{job}verdict {REFUSAL_S} $!\n"

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

    def beside_perftest(self):
        """What one link moves and what perftest does, which does nothing but that, in turn; four times."""
        device = "-F -d rxe0 -x 1"
        # Port 18515, in hexadecimal digits; a client that finds no server leaves the server waiting for ever.
        listens = "grep -q ':4853 0*:0000 0A' /proc/net/tcp /proc/net/tcp6"
        server = f"$1 {device} $2 >/dev/null 2>&1 &\nwhile kill -0 $! && ! {listens}; do sleep 0.05; done\n"
        client = f"$1 {device} $2 127.0.0.1 | grep -A 1 '#bytes'\nwait\n"
        turns = "compare() {\necho $1 $2\n" + server + client + "}\nfor round in 1 2 3 4; do\n"
        for size, slots in ((64 << 10, ("", 16, 32)), (256 << 10, ("",))):
            for how in ("slots", "written", "read"):
                turns += "".join(f"{self.stream} {how} {size} {count} || exit 1\n" for count in slots)
            # Also as deep as a link: 8 requests under way.
            pairs = [(of, depth) for of in ("ib_write_bw", "ib_read_bw") for depth in ("", " -t 8")]
            turns += "".join(f"compare {of} '-b -s {size} -n {(16 << 20) // size}{depth}'\n" for of, depth in pairs)
        return turns + f"{self.stream} reflect 8 || exit 1\ncompare ib_write_lat '-s 8 -n 1000'\ndone\n"

    def wrong_key(self):
        """A rank with another key gets nowhere, and sends nothing by the device. Rank 0 would wait for the right one."""
        host = "127.0.0.1"
        first = self.rank(0, 2, f"{self.perf} -b 8 -e 8 -n 1", host) + " >/out/rank0 2>&1 &\npid=$!\n"
        before = "before=$(sent)\n"
        other = self.rank(1, 2, f"{self.perf} -b 8 -e 8 -n 1", host, "another-key-that-nobody-has") + " && exit 1\n"
        after = "[ $(sent) = $before ] || exit 8\n"
        return before + first + other + "kill -0 $pid || exit 7\nkill $pid\n" + after + "exit 0\n"

    def killed_rank(self):
        """Ranks 0 and 2 must fail, by themselves, when rank 1 is killed in the middle of a call."""
        command = f"{self.perf} -b 256K -e 256K -n 100000"
        start = [self.rank(index, 3, command, "127.0.0.1") + f" >/out/rank{index} 2>&1 &\npid{index}=$!\n" for index in range(3)]
        return (
            "".join(start)
            + "until grep -q 'link to rank' /out/rank2; do sleep 0.2; done\nat_work $pid2 1000\nfault\nkill -9 $pid1\n"
            + f"verdict {DEATH_S} $pid0 $pid2\ncat /out/rank0 /out/rank2\n"
            + "grep -q 'rank 1 died' /out/rank0 && grep -q 'rank 1 died' /out/rank2\n"
        )

    def registered(self, index, after=""):
        """A rank on a guest of its own whose buffers are registered, so that the ring reads slices of 32 KiB from the peer's.

        Counts the packets that bring the middle of what is read: opcode 14, the first byte behind the UDP header.
        """
        count = "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff"
        count += " match ip dport 4791 0xffff match u8 14 0xff at 28 action ok || exit 9\n"
        enough = "tc -s filter show dev eth0 ingress\n"
        enough += "packets=$(tc -s filter show dev eth0 ingress | grep -o 'bytes [0-9]* pkt' | tail -1 | grep -o '[0-9]*')\n"
        enough += "at_least 1000 $packets packets read by the device\n"
        return "export ANNULUS_ALGORITHM=ring\n" + count + self.two_hosts(index, buffers=" -R 1", after=enough + after)

    def two_hosts(self, index, during="", buffers="", after=""):
        """A rank on a guest of its own, in the middle of whose work `during` is run, and `after` when it has ended."""
        command = f"{self.perf}{buffers} -b 64 -e 64K -f 1024 -n 100 >/out/rank 2>&1 &\npid=$!\n"
        wait = "until grep -q 'verbs rxe0' /out/rank; do sleep 0.1; done\nat_work $pid 300\n" if during else ""
        return self.rank(index, 2, command) + wait + during + "\nwait $pid\nstatus=$?\ncat /out/rank\n" + after + "exit $status\n"

    def over_ipv6(self, index):
        """A rank on a guest of its own whose device has an IPv6 address, which it takes. Nothing else uses IPv6 there."""
        own = f"fd00:77::{index + 1}"
        gid = f"until grep -q fd00:0077:0000:0000:0000:0000:0000:000{index + 1} /sys/class/infiniband/rxe0/ports/1/gids/[0-7]; do sleep 0.1; done\n"
        address = f"ip addr add {own}/64 dev eth0 nodad || exit 9\n{gid}export ANNULUS_VERBS_GID={own}\n"
        count = "came() { awk '$1 == \"Ip6InReceives\" { print $2 }' /proc/net/snmp6; }\nbefore=$(came)\n"
        return address + count + self.two_hosts(index, after="at_least 1000 $(($(came) - before)) packets came by IPv6\n")

    def blackout(self, index):
        """A rank on a guest of its own. Guest 1 loses all that it sends for a moment, in the middle of the work, which goes on.

        The device waits longer than by default, for 8 s: beginning and ending the blackout takes a slow guest a second as well.
        """
        black = "tc qdisc add dev eth0 root netem loss 100% limit 10000\nlosing $pid\nlost\ntc qdisc del dev eth0 root\nat_work $pid 1000\n"
        return "export ANNULUS_VERBS_TIMEOUT=18\n" + self.two_hosts(index, black if index == 1 else "")

    def by_ssh(self, index):
        """Four ranks on two guests, started by annulus-run on guest 0 through ssh; also with the algorithm of two levels."""
        folder = os.path.dirname(os.path.realpath(__file__))
        if index == 1:
            return f"sh {folder}/sshd.sh && until [ -e /together/done ]; do sleep 0.1; done\n"
        hosts = f"{guests.address(0)}:2,{guests.address(1)}:2"
        job = f'{self.launcher} -H {hosts} --ssh "ssh -F /run/ssh/config" {self.perf} -b 1K -e 64K -f 64 -n 5 || exit 1\n'
        return (
            f"sh {folder}/sshd.sh || exit 9\nexport ANNULUS_TRANSPORT=verbs ANNULUS_LOG=info\n"
            + job + "export ANNULUS_ALGORITHM=two_level\n" + job + "touch /together/done\n"
        )

    def goes_on(self, index, during, begun="sleep 3\n"):
        """A rank on a guest of its own, which works for a while after `during` has happened to one of them."""
        command = f"{self.perf} -b 64K -e 64K -n 1500 >/out/rank 2>&1"
        job = "{ " + self.rank(index, 2, command) + "\necho $? >/out/ended\n} &\n"
        begun = "until grep -q 'verbs rxe0' /out/rank; do sleep 0.1; done\n" + begun
        told = f"until grep -q '{ON_OVER_TCP}' /out/rank || [ -s /out/ended ]; do sleep 0.2; done\n"
        return job + begun + during + told + "wait\ncat /out/rank\nexit $(cat /out/ended)\n"

    def link_down(self, index, during, limit=PATH_S):
        """A rank on a guest of its own, which must end by itself after `during`; no link goes on over TCP."""
        return "export ANNULUS_RECONNECT_MS=0\n" + self.fails(index, during, limit)

    def fails(self, index, during, limit):
        """A rank on a guest of its own, which must fail at most `limit` seconds after `during`, which is run on one of them."""
        command = f"{self.perf} -b 64K -e 64K -n 1000000 >/out/rank 2>&1 &\npid=$!\n"
        begun = "until grep -q 'verbs rxe0' /out/rank; do sleep 0.1; done\nat_work $pid 500\n"
        during = "fault\n" + during if during else ""
        return self.rank(index, 2, command) + begun + during + f"verdict {limit} $pid\ncat /out/rank\n"

    def paused_host(self, index):
        """Ranks on guests of their own, joined by TCP, which are paused one after the other. Both go on, with right sums."""
        end = "[ $(grep -c error: /out/rank) = 0 ] && kill -0 $pid\nstatus=$?\ncat /out/rank\n"
        if index == 1:
            waits = "touch /together/turn\nuntil [ -e /together/paused ]; do sleep 0.1; done\n"
            return self.over_tcp(1) + self.pause("stop", 8) + waits + end + "touch /together/seen\nexit $status\n"
        first = "until [ -e /together/turn ]; do sleep 0.1; done\n" + self.pause("freeze", 8)
        # Rank 0 prints a row for each size, with the number of wrong elements of two forms.
        more = "rows=$(grep -c float32 /out/rank)\nuntil [ $(grep -c float32 /out/rank) -gt $((rows + 3)) ]; do sleep 0.1; done\n"
        right = "awk '$3 == \"float32\" && $13 + $21 > 0 { exit 1 }' /out/rank || exit 9\n"
        done = "touch /together/paused\nuntil [ -e /together/seen ]; do sleep 0.1; done\nexit $status\n"
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


def of_one_guest(run):
    """Cases of one guest with several ranks."""
    refusal = "verbs: rxe0, port 1"
    copied = ["rank 0: results on Fake GPU (sm_90) are right", "rank 1: results on Fake GPU (sm_90) are right"]
    copied += [f"memory of GPUs over verbs: by copies: {refusal}"]
    copied += [f"some memory of GPUs goes through host memory, by a copy: {refusal}"]
    return [
        Case("contract", [run.contract + "\n"], 64 << 20, ["[  PASSED  ]"]),
        Case("collectives", [run.all_collectives()], 80 << 20, ["wrong elements: 0", "limit: RDMA: every rank writes"]),
        Case("parts", [run.calls_with_parts()], 10 << 20, [f"rank {rank}: parts, exchanges and tags are right" for rank in range(3)]),
        Case("algorithms", [run.algorithms()], 64 << 20, ["wrong elements: 0"]),
        Case("packet_sizes", [run.packet_sizes()], 96 << 20, ["wrong elements: 0", "MTU 1024", "MTU 4096"]),
        Case("two_devices", [run.two_devices()], 16 << 20, ["wrong elements: 0", "rxe0, port 1", "and rxe1, port 1"]),
        Case("device_memory", [run.device_memory()], 4 << 20, copied),
        Case("locked_memory", [run.little_memory()], 0, ["the limit on locked memory"]),
        Case("wrong_key", [run.wrong_key()], 0, ["authentication failed"]),
        Case("killed_rank", [run.killed_rank()], 4 << 20, ["rank 1 died"]),
        Case("port_down", [run.port_down()], 0, ["rxe0, port 1 is down"]),
    ]


def of_two_guests(run):
    """Cases of two guests with one wire. The last one takes a guest down."""
    loss = "tc qdisc add dev eth0 root netem loss 1% limit 10000 || exit 9\n"
    verbs = ("verbs rxe0, port 1",)
    # RoCE is UDP to this port; the TCP connections live. What a guest sends must not be dropped by itself: rxe tries again
    # for ever what its own network refuses, and neither counts that as a retry nor reports it.
    no_roce = "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop\n"
    for_good = "ip link set eth0 down\n"
    lost = ("rank 0 and rank 1 lost each other", "[rank at fault: 1]")  # Neither hears of the other; both find the same.
    dies = "echo b >/proc/sysrq-trigger\n"
    for_two_s = "ip link set eth0 down\nsleep 2\nip link set eth0 up\n"
    without_copy = ("bytes of registered memory without a copy", "were read from its memory")
    six = ("RoCE v2 fd00:77::",)
    return [
        Case("two_hosts", [run.two_hosts(0), run.two_hosts(1)], 10 << 20, verbs),
        Case("ipv6", [run.over_ipv6(0), run.over_ipv6(1)], 10 << 20, verbs + six),
        Case("auto", [run.two_hosts(i).replace("TRANSPORT=verbs", "TRANSPORT=auto") for i in (0, 1)], 10 << 20, verbs),
        Case("registered", [run.registered(0), run.registered(1)], 12 << 20, verbs + without_copy),
        Case("ssh", [run.by_ssh(0), run.by_ssh(1)], 8 << 20),
        Case("two_hosts_with_loss", [loss + run.two_hosts(i, after="lost\n") for i in (0, 1)], 10 << 20, verbs),
        Case("registered_with_loss", [loss + run.registered(i, "lost\n") for i in (0, 1)], 12 << 20, verbs + without_copy),
        Case("blackout", [run.blackout(0), run.blackout(1)], 10 << 20, verbs),
        Case("no_roce", [run.goes_on(0, ""), run.goes_on(1, no_roce)], 2 << 20, verbs + (ON_OVER_TCP + " eth0",), absent=()),
        Case("link_down", [run.link_down(0, ""), run.link_down(1, for_two_s)], 1 << 20, verbs, same="[rank at fault"),
        Case("link_down_for_good", [run.link_down(0, "", HOST_S), run.link_down(1, for_good, HOST_S)], 1 << 20, verbs + lost, same="[rank at fault"),
        Case("paused_host", [run.paused_host(0), run.paused_host(1)], 0, ["control connection"], absent=()),
        Case("dead_host", [run.fails(0, "", HOST_S), run.fails(1, dies, HOST_S)], 1 << 20, ["[rank at fault: 1]"], dies=1),
    ]


def by_name(run):
    """Cases that run only when they are named, each in guests of its own: they take long, or are about the kernel's TLS."""
    sealed = "Annulus, ANNULUS_ENCRYPT=required: the kernel seals 0 and opens 0"
    return [
        Case("long_paused_host", [run.long_paused_host(0), run.long_paused_host(1)], 0, ["link to rank"]),
        Case("kernel_tls", [run.kernel_tls()], 0, [sealed]),
    ]


def bench(folder):
    return [Case("beside_perftest", [Programs(folder).beside_perftest()], 1 << 20, ["verbs_stream reflect", "BW average"])]


def boots(folder, only):
    """The cases, or those with `only` in their names, as lists of those that share their guests."""
    run = Programs(folder)
    lists = [of_one_guest(run), of_two_guests(run)] + ([[case] for case in by_name(run)] if only else [])
    chosen = [[case for case in cases if only in case.name] for cases in lists]
    return [cases for cases in chosen if cases]
