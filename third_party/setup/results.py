"""Counts the tests of one `bazel test` from its own record (--build_event_json_file).

    results.py RECORD BAZEL_STATUS

Prints "PASSED FAILED" on the first line, then one line per test target that did not pass: its label and what became of
it. A failure that no test shows (nothing built, no record written) counts as one failed test, so that it is never lost.
"""

import json
import sys

# Test targets that were asked for have a size; other targets do not.
NOT_RUN = "not built or not run"


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


def main():
    path, bazel_status = sys.argv[1], int(sys.argv[2])
    tests = outcomes(path)
    bad = {label: status for label, status in tests.items() if status != "PASSED"}
    if bazel_status != 0 and not bad:
        bad["bazel"] = f"ended with status {bazel_status}"
    print(sum(status == "PASSED" for status in tests.values()), len(bad))
    for label, status in sorted(bad.items()):
        print(label, "-", status.lower().replace("_", " "))


if __name__ == "__main__":
    main()
