#!/usr/bin/env python3
"""Each rule of tidy finds what it is for, and leaves alone what merely looks like it."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import rules_code  # noqa: E402
import rules_docs  # noqa: E402
import rules_rooms  # noqa: E402
import tidy  # noqa: E402
from source import Source, functions, read_tree  # noqa: E402

HEAD = "// Thing: does a thing.\n#pragma once\n"


def found(rule, path, text):
    return sorted(line for line, _ in rule(Source(path, text)))


class CodeRules(unittest.TestCase):
    def test_file_length(self):
        self.assertEqual(found(rules_code.file_length, "base/a.cc", "int x;\n" * 401), [1])
        self.assertEqual(found(rules_code.file_length, "base/a.cc", "int x;\n" * 400), [])
        self.assertEqual(found(rules_code.file_length, "docs/a.md", "text\n" * 900), [])

    def test_function_length(self):
        def body(lines):
            return "namespace a {\n\nclass B {\n  int F(int x) {\n" + "    ++x;\n" * (lines - 2) + "  }\n};\n\n}  // namespace a\n"

        self.assertEqual(found(rules_code.function_length, "base/a.cc", body(70)), [])
        self.assertEqual(found(rules_code.function_length, "base/a.cc", body(71)), [4])
        self.assertEqual(found(rules_code.function_length, "a.py", "def f():\n" + "    x = 1\n" * 70), [1])

    def test_class_size(self):
        def holder(members, more=""):
            return "class Big final : public Base<void()> {\n public:\n  int x() const { return a0_; }\n" + more + members + "};\n"

        fifteen = "".join(f"  int a{i}_ = {i};\n" for i in range(15))
        rule = rules_code.class_size
        self.assertEqual(found(rule, "base/a.h", holder(fifteen)), [])
        forms = ("std::vector<int> b_;", "int b_[2][3] = {};", "std::atomic<int> b_{F({1})};", "T b_ = {1, {2}};", "const T* const b_ = F(a_);")
        for form in forms:
            self.assertEqual(found(rule, "base/a.h", "\n" + holder(fifteen + f"  {form}\n")), [2], form)
        others = (
            "struct Part { int b_; };",
            "static constexpr int kMost = 3;",
            "Big() : a0_(1), a1_{2} {}",
            "void F(int b) { c_ = b; }",
            "int G() const;  // int b_;",
            "enum class E { kOne };",
        )
        for other in others:
            self.assertEqual(found(rule, "base/a.h", holder(fifteen, f"  {other}\n")), [], other)
        self.assertEqual(found(rule, "base/a.h", f"struct Outer {{\n  int c_;\n{holder(fifteen + '  int b_;' + chr(10))}}};\n"), [3])

    def test_functions_are_told_from_other_blocks(self):
        code = """
namespace a {
struct S : public T<int (*)()> { int x = F({1, 2}); };
enum class E { kOne };
constexpr int kTable[] = {1, 2};
S::S(int x)
    : a_{x}, b_(2) {
  auto lambda = [](int y) { return y; };
  if (x) { lambda(x); }
}
TEST_F(Thing, DoesIt) { EXPECT_TRUE(true); }
template <class X, typename Y = void (*)(std::vector<std::vector<X>>)>
bool operator()(const X& x) const noexcept { return x; }
extern "C" int Plain(void) { return 0; }
extern "C" {
int InBlock(void) { return 0; }
}
class alignas(64) C { int G() { return 1; } };
}
"""
        names = [name for name, _, _ in functions(Source("base/a.cc", code).code)]
        self.assertEqual(len(names), 6, names)
        self.assertIn("Thing.DoesIt", names)

    def test_comments_and_strings_are_no_code(self):
        text = 'const char* a = "strcpy(";  // strcpy(\n/* strcpy( */ auto b = R"(strcpy(")";\nint c = 300\'000; strcpy(d, \'"\');\n'
        self.assertEqual(found(rules_code.banned_calls, "base/a.cc", text), [3])

    def test_types_of_one_name(self):
        def lines(*texts):
            sources = [Source(f"base/{number}.cc", text) for number, text in enumerate(texts)]
            return [(path, line) for path, line, _ in rules_code.types_of_one_name(sources)]

        job = "namespace a {\n\nstruct Job {};\n}\n"
        same = (
            "namespace a {\n\nclass Job final : public Base<int (*)()> { int x = F({1}); };\n}\n",
            "namespace a {\n\nenum class Job : int { kOne };\n}\n",
            "namespace a {\nvoid F() {}\ntemplate <class T> class alignas(64) [[nodiscard]] Job {};\n}\n",
        )
        for text in same:
            self.assertEqual(lines(job, text), [("base/1.cc", 3)], text)
        others = (
            "namespace a {\nnamespace {\nstruct Job {};\n}\n}\n",
            "namespace a {\nclass B { struct Job {}; };\nvoid F() { struct Job {}; }\n}\n",
            "namespace a {\nclass Job;\nstruct B::Job {};\nstruct Job F() { return {}; }\n}\n",
            "namespace b { struct Job {}; }\nstruct Job {};\n",
            "namespace a { template <> struct Job<int> {}; }\n",
        )
        for text in others:
            self.assertEqual(lines(job, text), [], text)
        self.assertEqual(lines("struct Job {};\n", 'extern "C" {\nstruct Job { int x; };\n}\n'), [("base/1.cc", 2)])

    def test_include_direction(self):
        rule = rules_code.include_direction
        self.assertEqual(found(rule, "base/a.cc", '#include "transport/transport.h"\n'), [1])
        self.assertEqual(found(rule, "transport/a.cc", '#include "collectives/engine/engine.h"\n'), [1])
        self.assertEqual(found(rule, "collectives/a.cc", '#include "base/status.h"\n#include <vector>\n'), [])
        self.assertEqual(found(rule, "tests/a.cc", '#include "collectives/engine/engine.h"\n'), [])
        self.assertEqual(found(rule, "collectives/a.cc", '#include "engine.h"\n'), [1])
        self.assertEqual(found(rule, "docs/examples/a.cc", '#include "base/status.h"\n'), [1])
        self.assertEqual(found(rule, "frameworks/python/a.cc", '#include "collectives/annulus.h"\n'), [1])
        self.assertEqual(found(rule, "frameworks/python/a.cc", '#include "frameworks/python/b.h"\n'), [])

    def test_backend_includes(self):
        rule = rules_code.backend_includes
        self.assertEqual(found(rule, "transport/tcp/a.cc", '#include "transport/shm/shm.h"\n'), [1])
        self.assertEqual(found(rule, "transport/security/connector.cc", '#include "transport/tcp/tcp.h"\n'), [1])
        self.assertEqual(found(rule, "collectives/a.cc", '#include "transport/tcp/tcp.h"\n'), [1])
        self.assertEqual(found(rule, "transport/select/select.cc", '#include "transport/tcp/tcp.h"\n'), [])
        self.assertEqual(found(rule, "transport/tcp/a.cc", '#include "transport/tcp/tcp.h"\n#include "transport/security/auth.h"\n'), [])

    def test_backend_names(self):
        rule = rules_code.backend_names
        self.assertEqual(found(rule, "collectives/a.cc", 'if (name == "shm") return;\n'), [1])
        self.assertEqual(found(rule, "transport/tcp/a.cc", 'return "shm";\n'), [1])
        self.assertEqual(found(rule, "transport/tcp/a.cc", 'return "tcp";\n'), [])
        self.assertEqual(found(rule, "collectives/a.cc", '// As in "tcp".\n'), [])
        self.assertEqual(found(rule, "transport/select/a.cc", "Allows(kShmTransport);\n"), [1])
        self.assertEqual(found(rule, "transport/shm/a.cc", "Allows(kShmTransport);\n"), [])
        self.assertEqual(found(rule, "tests/a.cc", 'config.transport = "tcp";\n'), [])

    def test_banned_calls(self):
        bad = [
            "strcpy(a, b);", "sprintf(a, b);", "gets(a);", "int x = rand();", "usleep(5);", "sleep(1);", "system(command);",
            "std::this_thread::sleep_for(1s);", "auto f = popen(a, b);", "assert(x);", "exit(1);", "_exit(1);",
            "std::cout << x;", "std::cerr << x;", "printf(x);", "std::fprintf(stderr, x);", "using namespace std;",
            "void* p = malloc(5);", "std::free(p);", "throw 1;", "thread.detach();", "std::getenv(x);",
            "  void TakeHello();", "Status Handshake::TakeProof() {",
        ]  # fmt: skip
        for line in bad:
            self.assertEqual(found(rules_code.banned_calls, "transport/a.cc", line), [1], line)
        good = [
            "snprintf(a, b, c);", "static_assert(x);", "pool.free();", "size_t free() const;", "  using namespace std::literals;",
            "on_exit();", "context.exit(1);", "my_rand();", "void operator()(T* t) const { std::free(t); }", "ASSERT_EQ(a, b);",
            "std::error_code system_error(x);", "  SealedSocket TakeSocket() {", "Status status = TakeHello();",
        ]  # fmt: skip
        for line in good:
            self.assertEqual(found(rules_code.banned_calls, "transport/a.cc", line), [], line)

    def test_what_only_the_library_must_not_do(self):
        for path in ("bench/a.cc", "launcher/a.cc", "docs/examples/a.c", "tests/a.cc"):
            self.assertEqual(found(rules_code.banned_calls, path, "printf(x);\nexit(1);\n"), [], path)
        self.assertEqual(found(rules_code.banned_calls, "bench/a.cc", "getenv(x);\nusleep(1);\n"), [1, 2])
        self.assertEqual(found(rules_code.banned_calls, "tests/a.cc", "getenv(x);\nusleep(1);\n"), [2])
        self.assertEqual(found(rules_code.banned_calls, "collectives/core/options.cc", "getenv(x);\n"), [])

    def test_globals(self):
        for line in ("int count = 0;", "static std::map<int, int> table;", "thread_local std::string name;", "std::mutex lock{};"):
            self.assertEqual(found(rules_code.no_globals, "transport/a.cc", line), [1], line)
        for line in ("constexpr int kCount = 0;", "const std::string kName;", "int Count();", "  int member = 0;", "static int F() {"):
            self.assertEqual(found(rules_code.no_globals, "transport/a.cc", line), [], line)
        for line in ("  static int count = 0;", "  static Registry& registry = Make();", "  static thread_local std::map<int, X*> all{};"):
            self.assertEqual(found(rules_code.no_globals, "transport/a.cc", line), [1], line)
            self.assertEqual(found(rules_code.no_globals, "collectives/core/options.cc", line), [], line)
            self.assertEqual(found(rules_code.no_globals, "tests/a.cc", line), [], line)
        for line in ("  static const Table table = Load();", "  static constexpr int kMost = 3;", "  static int F(int x = 3);", "  static A* B() { return {}; }"):
            self.assertEqual(found(rules_code.no_globals, "transport/a.cc", line), [], line)

    def test_owners(self):
        for line in ("T* t = new T;", "return new Thing(1);", "delete t;", "delete[] t;"):
            self.assertEqual(found(rules_code.owned_new, "transport/a.cc", line), [1], line)
        good = ("std::unique_ptr<T> t(new T(1));", "T(const T&) = delete;", "  : cells_(new T[3]) {", "new (place) T;", "int new_size = 1;")
        for line in good:
            self.assertEqual(found(rules_code.owned_new, "transport/a.cc", line), [], line)

    def test_heads_and_guards(self):
        self.assertEqual(found(rules_code.head_of_file, "base/a.h", "#pragma once\n"), [1])
        self.assertEqual(found(rules_code.head_of_file, "base/a.cc", '#include "base/b.h"\n'), [1])
        self.assertEqual(found(rules_code.head_of_file, "base/a.cc", '#include "base/a.h"\n'), [])
        self.assertEqual(found(rules_code.head_of_file, "base/BUILD", "cc_library()\n"), [1])
        self.assertEqual(found(rules_code.head_of_file, "base/BUILD", "# base: all use it.\n"), [])
        self.assertEqual(found(rules_code.head_of_file, "a.sh", "#!/bin/bash\nls\n"), [1])
        self.assertEqual(found(rules_code.head_of_file, "a.py", '"""Does it."""\n'), [])
        self.assertEqual(found(rules_code.header_guard, "base/a.h", "// A.\n"), [1])
        self.assertEqual(found(rules_code.header_guard, "base/a.h", HEAD), [])

    def test_leftovers(self):
        lines = "// TODO: more\n// FIXME\n// in /root/project\n// /usr/share is fine, so is shared/work/x\n"
        self.assertEqual(found(rules_code.leftovers, "base/a.cc", lines), [1, 2, 3])

    def test_unbuilt(self):
        builds = {"base": 'srcs = ["a.cc"]', "tests/fuzz": 'fuzz_target(name = "f")'}

        def unbuilt(path):
            return list(rules_code.in_a_build_file(Source(path, ""), builds, {"base": "cc peer.c"}))

        self.assertEqual(len(unbuilt("base/b.cc")), 1)
        for path in ("base/a.cc", "base/peer.c", "tests/fuzz/f.cc", "base/notes.md"):
            self.assertEqual(unbuilt(path), [], path)


class RoomRules(unittest.TestCase):
    LOW = """
package(default_visibility = ["//tests:__subpackages__"])
cc_library(name = "door", hdrs = ["door.h"], srcs = ["own.h"], visibility = ["//collectives:above_core"])
cc_library(name = "private", hdrs = ["private.h"])
"""
    GROUPS = """
package_group(name = "above_core", includes = [":above_comm"], packages = ["//collectives/reduce/..."])
package_group(name = "above_comm", packages = ["//collectives/api/..."])
"""

    def test_direction(self):
        rule = rules_rooms.room_direction
        up, down = '#include "collectives/engine/engine.h"\n', '#include "collectives/core/call.h"\n'
        self.assertEqual(found(rule, "collectives/core/a.cc", up), [1])
        self.assertEqual(found(rule, "collectives/engine/a.cc", up + down), [])
        self.assertEqual(found(rule, "collectives/new_room/a.cc", down), [1])
        self.assertEqual(found(rule, "transport/wire/a.cc", '#include "transport/security/auth.h"\n'), [1])
        self.assertEqual(found(rule, "transport/a.cc", '#include "transport/wire/frame.h"\n'), [1])
        self.assertEqual(found(rule, "launcher/main.cc", '#include "launcher/job/job.h"\n'), [])
        self.assertEqual(found(rule, "tests/a.cc", up), [])

    def test_doors(self):
        builds = {"collectives/core": self.LOW, "collectives": self.GROUPS, "bench": "", "tests": ""}
        builds |= {"collectives/reduce": "", "collectives/api": ""}
        all_doors = rules_rooms.Doors(builds)

        def lines(path, header):
            source = Source(path, f'#include "collectives/core/{header}"\n')
            return [line for line, _ in rules_rooms.doors(source, all_doors, builds)]

        for path in ("collectives/core/b.cc", "collectives/reduce/b.cc", "collectives/reduce/deep/b.cc", "collectives/api/b.cc"):
            self.assertEqual(lines(path, "door.h"), [], path)
        self.assertEqual(lines("bench/b.cc", "door.h"), [1])
        self.assertEqual(lines("collectives/core/b.cc", "own.h"), [])
        self.assertEqual(lines("collectives/reduce/b.cc", "own.h"), [1])
        self.assertEqual(lines("collectives/reduce/b.cc", "private.h"), [1])
        self.assertEqual(lines("tests/b.cc", "private.h"), [])

    def test_heads_and_sizes(self):
        rule = rules_rooms.room_heads
        self.assertEqual(found(rule, "transport/tcp/BUILD", "# tcp: links.\npackage()\n"), [1])
        self.assertEqual(found(rule, "transport/tcp/BUILD", "# tcp: links.\n# Begin with tcp.h.\npackage()\n"), [1])
        self.assertEqual(found(rule, "transport/tcp/BUILD", "# tcp: links. Uses wire.\n# Begin with tcp.h.\npackage()\n"), [])
        many = [Source(f"base/a{number}.cc", "") for number in range(rules_rooms.MOST_FOLDER_FILES + 1)]
        self.assertEqual([path for path, _, _ in rules_rooms.folder_sizes(many)], ["base"])
        self.assertEqual(list(rules_rooms.folder_sizes(many[1:])), [])
        record = [Source(f"docs/decisions/{number:04}-a.md", "") for number in range(100)]
        self.assertEqual(list(rules_rooms.folder_sizes(record)), [])


class DocumentRules(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for path, text in {
            "docs/a.md": "# Head line\n## `Two` words\n",
            "base/x.h": HEAD,
            "base/x.cc": '#include "base/x.h"\n',
            "base/BUILD": '# base. It uses nothing. Begin with x.h.\ncc_library(name = "x", srcs = ["x.cc"], hdrs = ["x.h"])\n',
        }.items():
            os.makedirs(os.path.join(self.folder.name, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(self.folder.name, path), "w", encoding="utf-8") as file:
                file.write(text)

    def lines(self, rule, text, *more):
        return [line for line, _ in rule(Source("docs/b.md", text), *(more or (self.folder.name,)))]

    def test_links(self):
        self.assertEqual(self.lines(rules_docs.links, "[a](a.md) [x](../base/x.h) [w](https://a.b/c)\n"), [])
        self.assertEqual(self.lines(rules_docs.links, "text\n[b](none.md)\n"), [2])
        self.assertEqual(self.lines(rules_docs.links, "[a](a.md#head-line) [a](a.md#two-words)\n"), [])
        self.assertEqual(self.lines(rules_docs.links, "[a](a.md#tail)\n"), [1])

    def test_paths(self):
        good = "`base/x.h` `base/x.{h,cc}` `base/x` `base/NAME.h` `base/` `base/*.cc` `int/none` docs/a.md\n```\n`base/no.h`\n```\n"
        self.assertEqual(self.lines(rules_docs.paths, good), [])
        for bad in ("`base/y.h`", "`base/x.{h,py}`", "see docs/none.md", "`docs/*.svg`"):
            self.assertEqual(self.lines(rules_docs.paths, bad), [1], bad)

    def test_labels(self):
        builds = {"base": 'cc_library(name = "x")\nfuzz_target(name = "frame_fuzz")'}
        self.assertEqual(self.lines(rules_docs.labels, "bazel test //base:frame_fuzzer //base:x //base:all //base/... https://a.b/c\n", builds), [])
        self.assertEqual(self.lines(rules_docs.labels, "//base:y\n//bass:x\n//base\n", builds), [1, 2, 3])

    def test_test_names(self):
        names = {("RingTest", "IsRight")}
        good = "`RingTest.IsRight` `Ring.md` Other.Text\n"
        self.assertEqual(self.lines(rules_docs.named_tests, good, names, {"RingTest"}), [])
        self.assertEqual(self.lines(rules_docs.named_tests, "`RingTest.IsWrong`\n`OtherTest.IsRight`\n", names, {"RingTest"}), [1, 2])
        contract = Source("docs/transport_contract.md", "`PostAfterCloseFails`\n`IsItSo` `Endpoint` `WouldBlock`\n")
        found_lines = [line for line, _ in rules_docs.contract_tests(contract, {("T", "IsItSo")})]
        self.assertEqual(found_lines, [1])

    def test_a_tree(self):
        sources = read_tree(self.folder.name)
        self.assertEqual(tidy.check(sources, self.folder.name), [])
        sources.append(Source("base/new.h", "int x;\n"))
        self.assertEqual([rule for _, _, rule, _ in tidy.check(sources, self.folder.name)], ["global", "guard", "head", "unbuilt"])


if __name__ == "__main__":
    unittest.main()
