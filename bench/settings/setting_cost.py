#!/usr/bin/env python3
"""What one value of a setting costs beside another, between two hosts that are network namespaces, one processor each.

    bench/settings/setting_cost.py --python ENV/bin/python --setting reconnect_ms --values 0,10000 --bytes 64M --rate 4gbit

Every start of the two ranks makes two communicators, one with each value, and calls allreduce over them in turns, in an order that is drawn
anew for each pair of turns. So both meet the same noise of the machine and the same memory; only what differs between two starts, or between
two connections, is left, for which there are many starts. A rate that the machine can do with ease shows what matters on such a network; with
"none" the processors are the limit. The same value twice shows how far the result can be believed.

Prints for each start, and for all: the median of the pairs' ratios of times, second value by first (with the interval that holds the true
median with 95 %), and the ratio of processor time. Needs root, and an environment with pyannulus and numpy. Nothing stays behind.
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scaling"))

import hosts  # noqa: E402
import report  # noqa: E402

PORT = 29555  # The port of the first communicator's rendezvous, on a host of our own; the second one's is the next.
WARM_UP = 2  # Turns that are not counted.


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment with pyannulus and numpy")
    parser.add_argument("--setting", required=True, help="as pyannulus.Communicator names it")
    parser.add_argument("--values", required=True, help="two, such as 0,10000")
    parser.add_argument("--bytes", required=True, help="of each allreduce, such as 8 or 64M")
    parser.add_argument("--calls", type=int, default=1, help="calls of a turn (%(default)s); many for small sizes")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of turns in each start (%(default)s)")
    parser.add_argument("--starts", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--rate", default="none", help="of each direction of the link, as tc writes it, or none (%(default)s)")
    parser.add_argument("--in-place", action="store_true")
    options = parser.parse_args()
    options.values = options.values.split(",")
    if len(options.values) != 2:
        parser.error("--values: two, with a comma between them")
    return options


def one_rank(rank, seed, job):
    """A rank of one start; rank 0 prints [[seconds, processor seconds] of the first value, the same of the second] for each pair."""
    import numpy  # pylint: disable=import-outside-toplevel
    import pyannulus  # pylint: disable=import-outside-toplevel

    draw = random.Random(seed)  # Both ranks draw alike.
    comms = [None, None]
    for which in draw.sample((0, 1), 2):
        value = job["values"][which]
        comms[which] = pyannulus.Communicator(
            rank=rank, size=2, rendezvous=f"{hosts.address(0)}:{PORT + which}", job_key="the-key-of-setting-cost", transport="tcp",
            **{job["setting"]: int(value) if value.lstrip("-").isdigit() else value})
    array = numpy.ones(max(job["bytes"] // 4, 1), numpy.float32)
    out = array if job["in_place"] else numpy.empty_like(array)

    def turn(comm):
        comm.barrier()
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(job["calls"]):
            comm.allreduce(array, op="max", out=out)
        return time.perf_counter() - begin, time.process_time() - used

    pairs = []
    for _ in range(WARM_UP + job["pairs"]):
        pair = [None, None]
        for which in draw.sample((0, 1), 2):
            pair[which] = turn(comms[which])
        pairs.append(pair)
    if rank == 0:
        print(json.dumps(pairs[WARM_UP:]))
    for comm in comms:
        comm.close()


def start(options, machines, seed):
    job = {"setting": options.setting, "values": options.values, "bytes": report.parse_size(options.bytes), "calls": options.calls,
           "pairs": options.pairs, "in_place": options.in_place}
    processors = sorted(os.sched_getaffinity(0))
    ranks = []
    for rank in range(2):
        words = ["taskset", "-c", str(processors[rank % len(processors)]), options.python, os.path.abspath(__file__), "rank", str(rank),
                 str(seed), json.dumps(job)]
        environment = {**os.environ, "ANNULUS_HOST_ID": f"host{rank}", "ANNULUS_LOCAL_RANK": "0"}
        ranks.append(subprocess.Popen(machines.command(rank, *words), env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=900)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank failed")
    return json.loads(outputs[0].splitlines()[-1])


def summary(pairs):
    ratios = sorted(second[0] / first[0] for first, second in pairs)
    count, half = len(ratios), 0.98 * math.sqrt(len(ratios))
    low, high = ratios[max(0, int(count / 2 - half))], ratios[min(count - 1, int(count / 2 + half))]
    used = sum(second[1] for _, second in pairs) / sum(first[1] for first, _ in pairs)
    return f"{count} pairs: time {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}), processor time {used:.3f}"


def main():
    if sys.argv[1:2] == ["rank"]:
        one_rank(int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
        return
    options = parse()
    if why := hosts.missing():
        sys.exit(why)
    hosts.enter()
    machines = hosts.Hosts(2, options.rate)
    every = []
    for seed in range(options.starts):
        pairs = start(options, machines, seed)
        every += pairs
        first = 1e6 * statistics.median(pair[0][0] for pair in pairs) / options.calls
        print(f"{summary(pairs)}, {first:.1f} us a call with {options.values[0]}, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"all {summary(every)}")


if __name__ == "__main__":
    main()
