"""One fuzz target, built twice: as a test of any compiler, and as a libFuzzer binary under --config=fuzz."""

def fuzz_target(name, deps):
    """Defines NAME_test (corpus and seeded mutations) and NAME_fuzzer (clang only, built on demand).

    The source is NAME.cc, the corpus lies in corpus/NAME.
    """
    native.cc_library(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        deps = deps,
        alwayslink = True,
    )
    corpus = native.glob(["corpus/%s/*" % name])
    native.cc_test(
        name = name + "_test",
        srcs = ["replay_main.cc"],
        tags = ["no_tsan"],  # One thread.
        args = ["$(location %s)" % file for file in corpus],
        data = corpus,
        deps = [":" + name],
    )
    native.cc_binary(
        name = name + "er",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name],
    )
