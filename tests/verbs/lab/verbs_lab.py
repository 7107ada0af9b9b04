#!/usr/bin/env python3
"""Runs the verbs transport on Linux's soft-RoCE driver, in virtual machines; and, over TCP, pauses such machines.

  verbs_lab.py --bin FOLDER [--only NAME] [--counts FILE]
  verbs_lab.py --bin FOLDER --bench

FOLDER holds annulus-run, annulus-perf, verbs_device_contract, verbs_gpus, verbs_parts and the stand-in for CUDA's driver as bazel-bin
does. Each case must pass and must also have sent its data by the RDMA device, unless it is about TCP: the device's own counters show a job that went over TCP unnoticed.
The cases long_paused_host, of two minutes, and kernel_tls run only by name. --bench measures one link beside ib_write_bw and ib_write_lat of the
package perftest, and needs verbs_stream (tests/verbs/lab) there too.
Below each case it shows what the case counted or measured in each guest; times are of the guest's clock.
Exit status: 0 all passed, 1 some failed or the guests cannot be made, 77 this machine lacks Debian's packages for them, or a way to the
archive.
"""

import argparse
import os
import shutil
import sys
import time

import cases
import guests
import machine

BENCH_LIMIT_S = 480

def run(booted, together, measures=False):
    """Runs cases that share their guests; those that measure take long, and show all. Returns the number of those that failed."""
    begin = time.monotonic()
    dies = together[-1].dies
    scripts = [{case.name: case.scripts[i] for case in together} for i in range(len(together[0].scripts))]
    ran, folder = guests.run(booted, scripts, dies, BENCH_LIMIT_S if measures else guests.CASE_LIMIT_S)
    failed = 0
    before = ""
    for case in together:
        wrong = case.judge(ran)
        failed += bool(wrong)
        seconds = ran[0].seconds(case.name, before)
        print(f"verbs lab: {case.name:20} {'FAILED' if wrong else 'passed'} {seconds:6.1f} s", flush=True)
        for note in case.notes(ran):
            print(f"    {note}", flush=True)
        if wrong or measures:
            print(wrong or ran[0].read(case.name + ".log"), flush=True)
        before = case.name
    print(f"verbs lab: {len(ran)} guests, {time.monotonic() - begin:.1f} s in all", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--counts", default="")
    parser.add_argument("--bench", action="store_true")
    options = parser.parse_args()
    try:
        booted = machine.prepare()
    except machine.Unavailable as reason:
        print(f"verbs lab: skipped: {reason}")
        return 77
    except machine.Broken as fault:
        print(f"verbs lab: FAILED: its machines cannot be made: {fault}")
        return 1
    folder = os.path.realpath(options.bin)
    if options.bench:
        return run(booted, cases.bench(folder), measures=True)
    boots = cases.boots(folder, options.only)
    failed = sum(run(booted, together) for together in boots)
    passed = sum(len(together) for together in boots) - failed
    if options.counts:
        with open(options.counts, "w", encoding="utf-8") as counts:
            counts.write(f"{passed} {failed}\n")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
