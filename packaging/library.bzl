"""Rules that make of Bazel's parts what a user of another build system needs: an archive in one piece, bare binaries."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_CC_TOOLCHAIN = {"_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain")}

def _link_flags(linker_inputs):
    """The -l flags of all inputs, each once, in the order in which a linker has to see them."""
    flags = []
    for linker_input in linker_inputs:
        for flag in linker_input.user_link_flags:
            if not flag.startswith("-l"):
                fail("%s links with %s, which annulus.pc cannot pass on yet" % (linker_input.owner, flag))
            if flag not in flags:
                flags.append(flag)
    return flags

def _static_archive_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    linker_inputs = ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list()
    archives = []
    for linker_input in linker_inputs:
        for library in linker_input.libraries:
            # Position-independent: the archive goes into programs and into shared libraries of its users.
            archive = library.pic_static_library or library.static_library
            if archive == None:
                fail("%s has no static form" % linker_input.owner)
            archives.append(archive)

    # One object, in which only the map's symbols are seen from outside. Sections leave their groups first: else a linker
    # would drop inline functions that the user's C++ program has too from under our calls to them. What is unique in the
    # whole process (static data of inline functions) has to be weak before objcopy is willing to make it local.
    args = ctx.actions.args()
    args.add(toolchain.ld_executable)
    args.add(toolchain.objcopy_executable)
    args.add(toolchain.nm_executable)
    args.add(toolchain.ar_executable)
    args.add(ctx.file.map)
    args.add(ctx.outputs.archive)
    args.add_all(archives)
    ctx.actions.run_shell(
        outputs = [ctx.outputs.archive],
        inputs = depset(archives + [ctx.file.map], transitive = [toolchain.all_files]),
        arguments = [args],
        command = """
set -euo pipefail
ld=$1 objcopy=$2 nm=$3 ar=$4 map=$5 out=$6
shift 6
sed -n 's/^ *\\(annulus_[a-z0-9_]*\\);$/\\1/p' "$map" >"$out.keep"
[[ -s "$out.keep" ]] || { echo "$map lists no symbol" >&2; exit 1; }
"$ld" -r --force-group-allocation -o "$out.o" --whole-archive "$@"
"$nm" --defined-only "$out.o" | awk '$2 == "u" { print $3 }' >"$out.unique"
[[ ! -s "$out.unique" ]] || "$objcopy" --weaken-symbols="$out.unique" "$out.o"  # It refuses an empty list.
"$objcopy" --strip-debug --keep-global-symbols="$out.keep" "$out.o" "$(dirname "$out")/annulus.o"
rm -f "$out"
"$ar" rcsD "$out" "$(dirname "$out")/annulus.o"
""",
        mnemonic = "StaticArchive",
        progress_message = "Joining %s" % ctx.label,
    )

    # What is not ours, and the C++ library, which a C linker does not add by itself.
    ctx.actions.write(ctx.outputs.libs, " ".join(["-lstdc++", "-lm"] + _link_flags(linker_inputs)) + "\n")

static_archive = rule(
    doc = "All of `library` in one archive, and a file with the flags that a program linked with it needs besides.",
    implementation = _static_archive_impl,
    attrs = dict(
        _CC_TOOLCHAIN,
        archive = attr.output(mandatory = True),
        libs = attr.output(mandatory = True),
        library = attr.label(mandatory = True, providers = [CcInfo]),
        map = attr.label(
            doc = "The linker script that lists the exported symbols.",
            mandatory = True,
            allow_single_file = [".map"],
        ),
    ),
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _stripped_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    out = ctx.actions.declare_file(ctx.label.name + "/" + ctx.file.src.basename)
    args = ctx.actions.args()
    args.add("--strip-unneeded")  # Debugging symbols, and with them the names of this machine's folders.
    args.add("--remove-section=.comment")
    args.add(ctx.file.src)
    args.add(out)
    ctx.actions.run(
        outputs = [out],
        inputs = depset([ctx.file.src], transitive = [toolchain.all_files]),
        executable = toolchain.objcopy_executable,
        arguments = [args],
        mnemonic = "Stripped",
        progress_message = "Stripping %s" % ctx.file.src.short_path,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles(files = [out]))]

stripped = rule(
    doc = "`src` as it is installed: without what only a debugger reads.",
    implementation = _stripped_impl,
    attrs = dict(
        _CC_TOOLCHAIN,
        src = attr.label(mandatory = True, allow_single_file = True),
    ),
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
