#!/usr/bin/env python3
"""annulus-run on several hosts: network namespaces, each with a real sshd. Values, failures, and no rank left behind."""

import os
import re
import signal
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import lab  # noqa: E402
import ssh  # noqa: E402

PROGRAM = os.path.abspath(os.environ["RANK_REPORT"])
LAUNCHER = os.path.abspath(os.environ["ANNULUS_RUN"])
IN_LAB = lab.enter(seconds=250)
HIDDEN = f"{lab.FOLDER}/only_here"
MARK = "MARK=of_a_rank"  # In the environment of each rank and of all that it starts.
# Two ranks on each host; every one says that it is there, with its pid, and then waits for long.
TWO_BY_TWO = ["-H", "host1:2,host2:2"]
WAIT = ["sh", "-c", "echo $$; exec sleep 1000"]


def setUpModule():
    if not IN_LAB:
        raise unittest.SkipTest("no lab, see above")
    os.mkdir(HIDDEN)
    Hosts.hosts = [lab.Host("host1", 1), lab.Host("host2", 2)]
    Hosts.ssh = " ".join(ssh.start_servers(Hosts.hosts, HIDDEN))


class Hosts(unittest.TestCase):
    maxDiff = None

    hosts = []
    ssh = ""

    def start(self, *arguments, variables=None, **settings):
        command = [LAUNCHER, "--ssh", self.ssh, "-x", MARK, *arguments]
        return lab.Program(command, lab.environment(**(variables or {})), **settings)

    def expect(self, job, status, *texts, seconds=20):
        """The job ends with `status`, its error text matches all of `texts`, and nobody is left on any host."""
        begin = time.monotonic()
        self.assertEqual(job.finish(seconds + 20), status, job.out + job.err)
        self.assertLess(time.monotonic() - begin, seconds)
        for text in texts:
            self.assertRegex(job.err, text)
        if not texts:
            self.assertEqual(job.err, "")
        self.expect_nobody()

    def expect_nobody(self, seconds=5):
        def ours(words, environ):
            return MARK in environ or "--agent" in words
        try:
            lab.until(lambda: not lab.processes(ours), seconds, "all ranks and agents gone")
        except TimeoutError as error:
            self.fail(f"{error}: {lab.processes(ours)}")

    def sessions(self, host):
        """The processes of sshd that serve connections to `host`, not the one that listens."""
        namespace = os.stat(f"/run/netns/{host.name}").st_ino

        def lives_there(pid):
            try:
                return os.stat(f"/proc/{pid}/ns/net").st_ino == namespace
            except FileNotFoundError:  # It has ended meanwhile.
                return False
        return [pid for pid, words in lab.processes(lambda words, _: bool(words) and words[0].startswith("sshd: root")).items()
                if lives_there(pid)]


class Success(Hosts):
    def expect_report(self, job, places, address):
        """`places` holds (local rank, local size) of each rank."""
        self.expect(job, 0)
        reports = sorted(line.split("] ", 1)[1] for line in job.out.splitlines())
        self.assertEqual(len(reports), len(places), job.out)
        port = re.search(r"rendezvous=\S+:(\d+) ", job.out).group(1)
        for rank, (local, local_size) in enumerate(places):
            self.assertEqual(job.lines_of(rank), [
                f"report rank={rank} size={len(places)} local_rank={local} local_size={local_size}"
                f" told={local}/{local_size} rendezvous={address}:{port} sums=right"])

    def test_two_by_two(self):
        self.expect_report(self.start(*TWO_BY_TWO, PROGRAM), [(0, 2), (1, 2)] * 2, "10.77.0.1")

    def test_hostfile_and_fewer_ranks_than_slots(self):
        with tempfile.NamedTemporaryFile("w", dir=lab.FOLDER) as file:
            file.write("# Ours.\nhost2 slots=2\n\nhost1:2  # Not all of them.\n")
            file.flush()
            self.expect_report(self.start("-np", "3", "--hostfile", file.name, PROGRAM), [(0, 2), (1, 2), (0, 1)],
                               "10.77.0.2")

    def test_this_host_among_others(self):
        self.expect_report(self.start("-H", "localhost:2,host2:1", PROGRAM), [(0, 2), (1, 2), (0, 1)],
                           lab.BRIDGE_ADDRESS)
        self.expect_report(self.start("-H", "host2:1,lab:2", PROGRAM), [(0, 1), (0, 2), (1, 2)], "10.77.0.2")

    def test_this_host_alone_needs_no_ssh(self):
        job = lab.Program([LAUNCHER, "--ssh", "false", "-H", "localhost:2", PROGRAM])
        self.expect_report(job, [(0, 2), (1, 2)], "127.0.0.1")

    def test_one_other_host(self):
        self.expect_report(self.start("-H", "host2:2", PROGRAM), [(0, 2), (1, 2)], "127.0.0.1")

    def test_address_given_for_the_first_host(self):
        self.expect_report(self.start(*TWO_BY_TWO, "--rendezvous-host", "host1", PROGRAM), [(0, 2), (1, 2)] * 2, "host1")

    def test_variables_folder_and_hosts(self):
        job = self.start("-H", "host1:1,root@10.77.0.2:1", "-x", "COLOUR=red = \"blue\"", "-x", "SHAPE", "-x", "EMPTY=",
                         "sh", "-c", 'echo "$COLOUR,$SHAPE,${EMPTY-unset},$PWD,$ANNULUS_CHANNELS,$(hostname)"',
                         variables={"SHAPE": "round", "ANNULUS_CHANNELS": "2"}, cwd="/usr/share")
        self.expect(job, 0)
        for rank in (0, 1):
            self.assertEqual(job.lines_of(rank), [f'red = "blue",round,,/usr/share,2,host{rank + 1}'])

    def test_input_goes_to_rank_0_and_much_output_comes_back(self):
        with tempfile.TemporaryFile() as numbers:
            numbers.write(b"".join(b"%d\n" % number for number in range(200_000)))
            numbers.seek(0)
            job = self.start(*TWO_BY_TWO, "sh", "-c", "cat; seq 1 200000; echo end >&2", stdin=numbers)
            self.assertEqual(job.finish(40), 0, job.err)
        expected = [str(number) for number in range(1, 200_001)]
        self.assertEqual(job.lines_of(0) == [str(number) for number in range(200_000)] + expected, True)
        for rank in (1, 2, 3):
            self.assertEqual(job.lines_of(rank) == expected, True)
        self.assertEqual(sorted(job.err.splitlines()), [f"[{rank}] end" for rank in range(4)])

    def test_no_prefix_and_a_last_line_without_end(self):
        job = self.start("-H", "host2:1", "--no-prefix", "printf", "no newline")
        self.expect(job, 0)
        self.assertEqual(job.out, "no newline")

    def test_no_connection_is_left_for_others_to_share(self):
        shared = f"{lab.FOLDER}/shared"
        with open(f"{lab.FOLDER}/ssh_config", encoding="utf-8") as file, open(f"{shared}.config", "w", encoding="utf-8") as config:
            config.write(f"{file.read()}  ControlMaster auto\n  ControlPath {shared}-%n\n  ControlPersist 60\n")
        job = lab.Program([LAUNCHER, "--ssh", f"ssh -F {shared}.config", "-x", MARK, "-H", "host2", *WAIT])
        job.await_lines(1)
        self.assertFalse(os.path.exists(f"{shared}-host2"))
        job.process.send_signal(signal.SIGTERM)
        self.expect(job, 128 + signal.SIGTERM, "stopped by signal 15")

    def test_key_is_on_no_command_line(self):
        job = self.start(*TWO_BY_TWO, "sh", "-c", "echo $ANNULUS_JOB_KEY; exec sleep 1000")
        job.await_lines(4)
        keys = {job.lines_of(rank)[0] for rank in range(4)}
        self.assertEqual(len(keys), 1)
        key = keys.pop()
        self.assertRegex(key, "^[0-9a-f]{64}$")
        everybody = lab.processes(lambda words, environ: True)
        self.assertTrue(any("--agent" in words for words in everybody.values()))
        self.assertEqual([words for words in everybody.values() if key in " ".join(words)], [])
        job.process.send_signal(signal.SIGTERM)
        self.expect(job, 128 + signal.SIGTERM, "stopped by signal 15")


class Failures(Hosts):
    def test_failing_rank_is_named_with_its_host(self):
        job = self.start(*TWO_BY_TWO, "sh", "-c", "echo $$; if [ $ANNULUS_RANK = 3 ]; then exit 7; fi; exec sleep 1000")
        self.expect(job, 7, r"^annulus-run: rank 3 \(pid \d+ on host2\) exited with status 7; ending the other ranks\n$")

    def test_killed_rank_is_named(self):
        job = self.start(*TWO_BY_TWO, *WAIT)
        job.await_lines(4)
        pid = job.lines_of(2)[0]
        os.kill(int(pid), signal.SIGKILL)
        self.expect(job, 128 + signal.SIGKILL, rf"^annulus-run: rank 2 \(pid {pid} on host2\) was killed by signal 9"
                                               r" \(Killed\); ending the other ranks\n$")

    def test_killed_rank_is_the_culprit_though_another_failed_a_moment_before(self):
        os.mkfifo(f"{lab.FOLDER}/follow")  # Both hosts see the file, as they are one machine.
        job = self.start("-H", "host1:1,host2:1", "sh", "-c",
                         f"cd {lab.FOLDER}; if [ $ANNULUS_RANK = 0 ]; then echo go > follow; exit 1; fi;"
                         " read line < follow; kill -SEGV $$")
        self.expect(job, 128 + signal.SIGSEGV, r"rank 1 \(pid \d+ on host2\) was killed by signal 11")

    def test_interrupts_end_all(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            job = self.start(*TWO_BY_TWO, "sh", "-c", "setsid sleep 1000 & echo $$; wait")
            job.await_lines(4)
            os.killpg(job.process.pid, number)  # As the terminal does.
            self.expect(job, 128 + number, rf"^annulus-run: stopped by signal {number} ", seconds=3)

    def test_interrupt_of_the_whole_group_leaves_ranks_their_time(self):
        for _ in range(3):  # The kernel often makes one of the signals to a process that has not looked yet.
            job = self.start(*TWO_BY_TWO, "sh", "-c",
                             "trap 'sleep 0.6; echo saved; exit 0' TERM; echo $$; while :; do sleep 0.02; done")
            job.await_lines(4)
            os.killpg(job.process.pid, signal.SIGTERM)
            self.expect(job, 128 + signal.SIGTERM, "stopped by signal 15")
            for rank in range(4):
                self.assertEqual(job.lines_of(rank)[1:], ["saved"])

    def test_second_interrupt_kills(self):
        job = self.start(*TWO_BY_TWO, "sh", "-c", "trap 'sleep 0.3; echo no' TERM; echo $$; while :; do sleep 0.02; done")
        job.await_lines(4)
        job.process.send_signal(signal.SIGINT)
        job.await_lines(8)
        job.process.send_signal(signal.SIGINT)
        self.expect(job, 128 + signal.SIGINT, "stopped by signal 2", seconds=2.5)

    def test_ranks_that_will_not_end_are_killed(self):
        job = self.start(*TWO_BY_TWO, "sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.1; done")
        job.await_lines(4)
        os.kill(int(job.lines_of(3)[0]), signal.SIGKILL)
        self.expect(job, 128 + signal.SIGKILL, "rank 3 .*killed by signal 9",
                    "host1: some processes did not end within 3 s; killing them")

    def test_killed_launcher_takes_all_with_it(self):
        job = self.start(*TWO_BY_TWO, *WAIT)
        job.await_lines(4)
        job.process.kill()
        self.expect_nobody()
        job.finish()

    def test_killed_connection_ends_the_job(self):
        job = self.start(*TWO_BY_TWO, *WAIT)
        job.await_lines(4)
        for pid in self.sessions(self.hosts[1]):
            os.kill(pid, signal.SIGKILL)
        self.expect(job, 255, r"host2: the connection broke \(ssh exited with status 255\)", seconds=5)

    def test_killed_connections_to_all_hosts_end_the_job(self):
        job = self.start(*TWO_BY_TWO, *WAIT)
        job.await_lines(4)
        for host in self.hosts[:2]:
            for pid in self.sessions(host):
                os.kill(pid, signal.SIGKILL)
        self.expect(job, 255, "the connection broke", seconds=5)

    def test_cut_cable_ends_the_job_on_both_sides(self):
        job = self.start("--link-timeout", "2", *TWO_BY_TWO, *WAIT)
        job.await_lines(4)
        self.hosts[1].cut_cable()
        self.addCleanup(self.hosts[1].mend_cable)
        self.expect(job, 255, "host2: nothing was heard of it for 2 s; the connection is taken for lost", seconds=8)

    def test_killed_agent_ends_the_job(self):
        job = self.start(*TWO_BY_TWO, "sh", "-c", "echo $PPID; exec sleep 1000")
        job.await_lines(4)
        os.kill(int(job.lines_of(2)[0]), signal.SIGKILL)
        self.expect(job, 255, r"host2: annulus-run: the supervisor \(pid \d+\) was killed by signal 9", "host2: the connection")

    def test_timeout(self):
        job = self.start("--timeout", "2", *TWO_BY_TWO, *WAIT)
        self.expect(job, 124, "^annulus-run: the job ran longer than 2 s; ending all ranks\n$")

    def test_reader_that_leaves_ends_the_job_as_in_a_pipeline(self):
        job = self.start(*TWO_BY_TWO, "yes")
        job.await_lines(10)
        job.close_out()
        self.expect(job, 128 + signal.SIGPIPE, "was killed by signal 13")


class Refusals(Hosts):
    def test_host_that_does_not_exist(self):
        self.expect(self.start("-H", "host1,nowhere", *WAIT), 255, "^annulus-run: nowhere: ssh failed: .*nowhere")

    def test_host_without_sshd(self):
        self.expect(self.start("-H", f"host1,{lab.BRIDGE_ADDRESS}", *WAIT), 255,
                    f"^annulus-run: {lab.BRIDGE_ADDRESS}: ssh failed: .*Connection refused\n$")

    def test_key_that_is_not_accepted(self):
        job = lab.Program([LAUNCHER, "--ssh", self.ssh + " -o IdentityFile=/dev/null -F none", "-H", "host2", "true"])
        self.expect(job, 255, "^annulus-run: host2: ssh failed: ")

    def test_annulus_run_that_is_not_there(self):
        self.expect(self.start("-H", "host2", "--remote-path", "/no/annulus-run", "true"), 255,
                    "^annulus-run: host2: annulus-run cannot be run there: .*/no/annulus-run: No such file.*--remote-path")

    def test_something_else_in_its_place(self):
        self.expect(self.start("-H", "host2", "--remote-path", "/bin/echo", "true"), 255,
                    "^annulus-run: host2: annulus-run does not answer there")

    def test_program_that_is_not_there(self):
        self.expect(self.start(*TWO_BY_TWO, "no-such-program"), 127,
                    '^annulus-run: host[12]: cannot run "no-such-program": No such file or directory\n$')

    def test_folder_that_is_not_there(self):
        folder = f"{HIDDEN}/here"
        os.makedirs(folder, exist_ok=True)
        self.expect(self.start(*TWO_BY_TWO, "true", cwd=folder), 125,
                    f"^annulus-run: host[12]: cannot work in {folder}, .*: No such file or directory\n$")

    def test_mistakes_in_arguments(self):
        for words, text in ((("-H", "host1:2", "-np", "3"), "-np is 3, but the hosts have 2 slots"),
                            (("-H", "host1,host1"), "host1 is listed twice"),
                            (("-H", "-oProxyCommand=x:2"), "is no host"),
                            (("--hostfile", "/no/file"), "/no/file cannot be read"),
                            (("-H", "host1", "-x", "NOWHERE"), "-x NOWHERE passes on")):
            self.expect(self.start(*words, "true"), 2, text)


if __name__ == "__main__":
    unittest.main()
