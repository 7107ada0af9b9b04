#!/usr/bin/env python3
"""Keeps the house rules (CONTRIBUTING.md) over the whole tree: prints "file:line: rule: what to do" for each violation.

tidy.py [ROOT]: without ROOT it looks at the tree that the Bazel test runs from, or else at the one that it lies in.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import rules_code  # noqa: E402
import rules_docs  # noqa: E402
import rules_rooms  # noqa: E402
import source  # noqa: E402

# These hold the banned words as patterns, and bad snippets on purpose.
OWN_FILES = ("tests/tidy/",)
OWN_EXEMPT = ("leftover", "label")


def find_root():
    """The real tree: Bazel shows a test only links to the files that it names, and WORKSPACE is one."""
    runfiles = os.environ.get("TEST_SRCDIR")
    if runfiles:
        return os.path.dirname(os.path.realpath(os.path.join(runfiles, os.environ["TEST_WORKSPACE"], "WORKSPACE")))
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def check(sources, root):
    """Returns a sorted list of (path, line, rule, what to do)."""
    build_texts = {s.folder: s.text for s in sources if s.name == "BUILD"}
    script_texts = {}
    for each in sources:
        if each.is_shell or each.is_python or each.path.endswith(".bzl"):
            script_texts[each.folder] = script_texts.get(each.folder, "") + each.text
    test_names = {names for s in sources if s.is_cpp for names in rules_docs.TEST_CASE.findall(s.text)}
    suites = {suite for suite, _ in test_names}
    all_doors = rules_rooms.Doors(build_texts)
    found = [(path, line, "folder-size", what) for path, line, what in rules_rooms.folder_sizes(sources)]
    found.extend((path, line, "type-name", what) for path, line, what in rules_code.types_of_one_name(sources))
    for each in sources:
        checks = {name: rule(each) for name, rule in rules_code.PER_FILE.items()}
        checks["room-direction"] = rules_rooms.room_direction(each)
        checks["room-head"] = rules_rooms.room_heads(each)
        checks["door"] = rules_rooms.doors(each, all_doors, build_texts)
        checks["unbuilt"] = rules_code.in_a_build_file(each, build_texts, script_texts)
        checks["link"] = rules_docs.links(each, root)
        checks["path"] = rules_docs.paths(each, root)
        checks["label"] = rules_docs.labels(each, build_texts)
        checks["test-name"] = rules_docs.named_tests(each, test_names, suites)
        checks["contract-test"] = rules_docs.contract_tests(each, test_names)
        for name, violations in checks.items():
            if each.path.startswith(OWN_FILES) and name in OWN_EXEMPT:
                continue
            found.extend((each.path, line, name, what) for line, what in violations)
    return sorted(found)


def main():
    root = os.path.realpath(sys.argv[1]) if len(sys.argv) > 1 else find_root()
    sources = source.read_tree(root)
    if len(sources) < 20:
        sys.exit(f"tidy: only {len(sources)} files under {root}; is that the repository?")
    violations = check(sources, root)
    for path, line, name, what in violations:
        print(f"{path}:{line}: {name}: {what}")
    print(f"tidy: {len(sources)} files, {len(violations)} violations")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
