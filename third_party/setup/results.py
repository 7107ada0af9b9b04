"""Reads what `bazel test` did from its own record (--build_event_json_file).

    results.py RECORD BAZEL_STATUS        counts the tests
    results.py --slowest COUNT RECORD...  shows where the time of one or more runs went
    results.py --why COUNT RECORD...      shows what the logs of tests that did not pass say of it

The counts are "PASSED FAILED" on the first line, then one line per test target that did not pass: its label and what
became of it. A failure that no test shows (nothing built, no record written) counts as one failed test, so that it is
never lost. The slowest tests are one line each: seconds, the run (its record's name), the label. The seconds of a
test's shards, which may run side by side, are added up. Why a test failed is at most COUNT lines of its log: those that
a test or a sanitizer complains in and the few that follow each, or else the last ones.
"""

import json
import os
import re
import sys
import urllib.parse

# Test targets that were asked for have a size; other targets do not.
NOT_RUN = "not built or not run"

# What googletest, sanitizers, unittest and aborting programs begin a complaint with, and how many lines it may have.
COMPLAINT = re.compile(r": Failure$|^\[  FAILED  \]|(Address|Thread|Leak)Sanitizer|runtime error:|^Traceback|^(FAIL|ERROR):|"
                       r"check failed|terminate called|TIMED OUT")
LINES_OF_A_COMPLAINT = 10


def read_events(path):
    try:
        with open(path, encoding="utf-8") as record:
            for line in record:
                yield json.loads(line)
    except (OSError, ValueError):
        return  # Bazel died before it wrote all: what there is counts, and its status tells the rest.


def outcomes(path):
    """Returns {label: status} of all test targets; FLAKY passed only on a later attempt, so it did not pass."""
    tests = {}
    for event in read_events(path):
        configured = event.get("id", {}).get("targetConfigured")
        if configured and event.get("configured", {}).get("testSize"):
            tests.setdefault(configured["label"], NOT_RUN)
        summary = event.get("id", {}).get("testSummary")
        if summary:
            tests[summary["label"]] = event.get("testSummary", {}).get("overallStatus", NOT_RUN)
    return tests


def durations(path):
    """Returns {label: (seconds of all shards, number of shards)} of the tests that ran; the last attempt counts."""
    shards = {}
    for event in read_events(path):
        test = event.get("id", {}).get("testResult")
        result = event.get("testResult", {})
        if test and not result.get("cachedLocally"):
            milliseconds = int(result.get("testAttemptDurationMillis", 0))
            shards.setdefault(test["label"], {})[test.get("run", 1), test.get("shard", 1)] = milliseconds / 1000
    return {label: (sum(each.values()), len(each)) for label, each in shards.items()}


def print_slowest(count, paths):
    rows = []
    for path in paths:
        run = os.path.splitext(os.path.basename(path))[0]
        rows.extend((seconds, run, label, shards) for label, (seconds, shards) in durations(path).items())
    for seconds, run, label, shards in sorted(rows, key=lambda row: (-row[0], row[1:]))[:count]:
        print(f"{seconds:8.1f} s  {run:<6} {label}" + (f" ({shards} shards)" if shards > 1 else ""))


def complaints(log, count):
    """Returns at most `count` lines of the file `log`."""
    with open(log, encoding="utf-8", errors="replace") as opened:
        lines = opened.read().splitlines()
    begins = [i for i, line in enumerate(lines) if COMPLAINT.search(line)]
    chosen = sorted({i for begin in begins for i in range(begin, min(begin + LINES_OF_A_COMPLAINT, len(lines)))})
    return [lines[i] for i in chosen[:count]] or lines[-count:]


def print_why(count, paths):
    for path in paths:
        run = os.path.splitext(os.path.basename(path))[0]
        for event in read_events(path):
            test = event.get("id", {}).get("testResult")
            result = event.get("testResult", {})
            if not test or result.get("status") == "PASSED":
                continue
            print(f"{run} {test['label']}, shard {test.get('shard', 1)}: {result.get('status', 'unknown').lower()}")
            for output in result.get("testActionOutput", []):
                log = urllib.parse.unquote(urllib.parse.urlparse(output.get("uri", "")).path)
                if output.get("name") == "test.log" and os.path.exists(log):
                    print("".join(f"  {line}\n" for line in complaints(log, count)), end="")


def print_counts(path, bazel_status):
    tests = outcomes(path)
    bad = {label: status for label, status in tests.items() if status != "PASSED"}
    if bazel_status != 0 and not bad:
        bad["bazel"] = f"ended with status {bazel_status}"
    print(sum(status == "PASSED" for status in tests.values()), len(bad))
    for label, status in sorted(bad.items()):
        print(label, "-", status.lower().replace("_", " "))


def main():
    if sys.argv[1] == "--slowest":
        print_slowest(int(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1] == "--why":
        print_why(int(sys.argv[2]), sys.argv[3:])
    else:
        print_counts(sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    main()
