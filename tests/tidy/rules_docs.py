"""House rules over the documents: what they name exists. A rule yields (line, what to do) for each violation."""

import glob
import itertools
import os
import re

# A word in backticks is taken for a path of the repository when it begins with one of these.
FOLDERS = ("base/", "cuda_kernels/", "transport/", "collectives/", "bench/", "tests/", "docs/", "third_party/", "packaging/", "frameworks/", ".ci/")


def document_lines(source):
    """Lines of a document with their numbers, without fenced blocks: those show output and programs."""
    fenced = False
    for number, line in enumerate(source.lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def slug(heading):
    """The anchor of a heading, as code hosts make it."""
    text = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", lambda match: match.group(1) or "", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(text):
    return {slug(match.group(1)) for match in re.finditer(r"^#+ +(.*?)\s*$", text, re.MULTILINE)}


def links(source, root):
    """Relative links lead to files that exist, and to headings that exist."""
    if not source.is_markdown:
        return
    for number, line in document_lines(source):
        for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            full = os.path.normpath(os.path.join(root, source.folder, path)) if path else os.path.join(root, source.path)
            if not os.path.exists(full):
                yield number, f"the link {target} leads nowhere; mend it, or write what it promises"
            elif anchor and full.endswith(".md"):
                with open(full, encoding="utf-8") as opened:
                    if anchor not in anchors(opened.read()):
                        yield number, f"{path or 'this page'} has no heading #{anchor}"


def expand(word):
    """a/{b,c}.h -> a/b.h, a/c.h."""
    parts = [part.split(",") for part in re.split(r"\{([^{}]*)\}", word)[1::2]]
    frame = re.split(r"\{[^{}]*\}", word)
    for choice in itertools.product(*parts):
        yield "".join(itertools.chain(*itertools.zip_longest(frame, choice, fillvalue="")))


def paths(source, root):
    """Paths of the repository that a document names exist. NAME and <name> stand for any name."""
    if not source.is_markdown:
        return
    for number, line in document_lines(source):
        words = re.findall(r"`([^`\s]+)`", line)
        words += re.findall(r"(?<![\w/`(\[.-])(docs/[\w./-]+\.md)\b", line)
        for word in words:
            if not word.startswith(FOLDERS) or not re.fullmatch(r"[\w./{},*<>:-]+", word):
                continue
            word = re.sub(r":\d+$", "", word)
            pattern = re.sub(r"<\w+>|\bNAME\b|\bBACKEND\b", "*", word)
            for path in expand(pattern):
                if not glob.glob(os.path.join(root, path)) and not glob.glob(os.path.join(root, path + ".*")):
                    yield number, f"{path} does not exist; name the file that does, or write it"


def labels(source, build_texts):
    """Bazel labels in documents and scripts name a package that exists and a target in its BUILD file."""
    if not (source.is_markdown or source.is_shell):
        return
    for number, line in enumerate(source.lines, 1):
        for package, target in re.findall(r"(?<![\w/:])//([a-z][\w/-]*)(?::([\w.-]+))?(?![\w/]*\.\.\.)", line):
            if package.endswith("/") or "..." in line[line.find(package) :][: len(package) + 4]:
                continue
            text = build_texts.get(package)
            name = target or os.path.basename(package)
            if text is None:
                yield number, f"//{package} is no package"
                continue
            # A macro makes targets of its own from a name, as fuzz_target(name = "frame_fuzz") makes frame_fuzzer.
            made = [name.startswith(stem) for stem in re.findall(r'^(?!cc_|sh_)\w+\(\s*name = "([^"]+)"', text, re.MULTILINE)]
            if name != "all" and f'name = "{name}"' not in text and not any(made):
                yield number, f"//{package} has no target {name}"


TEST_CASE = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")


def named_tests(source, test_names, suites):
    """`Suite.Test` in backticks is a test that exists."""
    if not source.is_markdown:
        return
    for number, line in document_lines(source):
        for suite, test in re.findall(r"`(?:\w+/)?(\w*(?:Test|Contract|Suite)\w*)\.(\w+)`", line):
            if (suite, test) not in test_names:
                hint = "that suite has no such test" if suite in suites else "no such suite"
                yield number, f"{suite}.{test}: {hint}; name the test that proves it"


def contract_tests(source, test_names):
    """The contract's page names, for each rule, a test; all of them are in the contract suite."""
    if source.path != "docs/transport_contract.md":
        return
    known = {test for _, test in test_names}
    for number, line in document_lines(source):
        # Names of tests state a rule, so they are several words in one.
        for name in re.findall(r"`([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*){2,})`", line):
            if name not in known:
                yield number, f"no test is called {name}; the contract's rules are those that tests prove"
