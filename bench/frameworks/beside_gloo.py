"""What the benches beside gloo share: jobs of one framework over gloo and over Annulus in turns on one machine, and a row for each function and size.

A bench calls main() with one_rank(rank, size, port, back_end, sizes), a process of a job: rank 0 prints "measured NAME BYTES MEDIAN LEAST" lines, in
microseconds. It has --python, --ranks, --rounds and, if its sizes are not its own, --bytes. Each row has the median of the rounds' medians and the least time
of both, in microseconds, and the two ratios. --also NAME=VALUE[,NAME=VALUE...], once or more, measures Annulus with these variables too, in the same turns; a row then
has its median and least time and gloo's ratios to them behind the others."""

import argparse
import os
import socket
import statistics
import subprocess
import sys


def job(python, size, back_end, sizes, variables):
    """{(name, bytes): (median, least) in us}."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([python, sys.argv[0], "rank", str(rank), str(size), str(port), back_end, ",".join(map(str, sizes))],
                              env={**os.environ, **variables}, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True) for rank in range(size)]
    output = ranks[0].communicate(timeout=600)[0]
    if any(each.wait(60) for each in ranks):
        sys.exit(f"{back_end}: a process failed")
    rows = [line.split()[1:] for line in output.splitlines() if line.startswith("measured ")]  # gloo prints lines of its own.
    return {(name, int(nbytes)): (float(median), float(least)) for name, nbytes, median, least in rows}


def bytes_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def main(one_rank, sizes=""):
    """`sizes`: those that are measured unless the user names others, such as "4,1K,16M"; empty: the bench knows its own."""
    if sys.argv[1:2] == ["rank"]:
        rank, size, port = map(int, sys.argv[2:5])
        one_rank(rank, size, port, sys.argv[5], [int(nbytes) for nbytes in sys.argv[6].split(",") if nbytes])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--also", action="append", default=[])
    if sizes:
        parser.add_argument("--bytes", default=sizes)
    arguments = parser.parse_args()
    wanted = {bytes_of(text): text for text in arguments.bytes.split(",")} if sizes else {}
    variables = [{}, {}] + [dict(each.split("=", 1) for each in text.split(",")) for text in arguments.also]
    for size in map(int, arguments.ranks.split(",")):
        rounds = [[] for _ in variables]  # Those of gloo, of Annulus, and of Annulus with other variables.
        for _ in range(arguments.rounds):
            for index, results in enumerate(rounds):
                results.append(job(arguments.python, size, "annulus" if index > 0 else "gloo", list(wanted), variables[index]))
        print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
        for name, nbytes in sorted(rounds[0][0]):
            measured = [[each[name, nbytes] for each in results] for results in rounds]
            medians = [statistics.median(median for median, _ in each) for each in measured]
            leasts = [min(least for _, least in each) for each in measured]
            row = [f"{medians[0]:.1f} | {medians[1]:.1f} | {medians[0] / medians[1]:.1f} | {leasts[0]:.1f} | {leasts[1]:.1f} | {leasts[0] / leasts[1]:.1f}"]
            row += [f"{median:.1f} | {medians[0] / median:.1f} | {least:.1f} | {leasts[0] / least:.1f}" for median, least in zip(medians[2:], leasts[2:])]
            print(f"| {size} | {name} | {wanted.get(nbytes, nbytes)} | {' | '.join(row)} |", flush=True)
