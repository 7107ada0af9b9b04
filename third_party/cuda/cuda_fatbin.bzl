"""Device code for all supported GPUs in one file, and that file as data of a program."""

load("@cuda_toolkit//:defs.bzl", "NVCC", "NVCC_VERSION")

def _cuda_fatbin(ctx):
    fatbin = ctx.actions.declare_file(ctx.label.name + ".fatbin")
    ptx = ctx.actions.declare_file(ctx.label.name + ".ptx")
    log = ctx.actions.declare_file(ctx.label.name + ".log")
    sass = ctx.actions.declare_file(ctx.label.name + ".sass")
    outputs = [fatbin, ptx, log, sass]
    if not NVCC:
        for output in outputs:
            ctx.actions.write(output, "")
    else:
        ctx.actions.run(
            executable = ctx.executable._compile,
            arguments = [NVCC, ctx.file.src.path, fatbin.path, ptx.path, log.path, sass.path],
            inputs = [ctx.file.src] + ctx.files.hdrs,
            outputs = outputs,
            env = {
                "NVCC_VERSION": NVCC_VERSION,  # Another compiler is another action.
                "PATH": "/usr/local/bin:/usr/bin:/bin",
            },
            mnemonic = "CudaFatbin",
            progress_message = "Compiling %s for GPUs" % ctx.file.src.short_path,
        )
    return [
        DefaultInfo(files = depset([fatbin])),
        OutputGroupInfo(ptx = depset([ptx]), log = depset([log]), sass = depset([sass])),
    ]

# NAME.fatbin: machine code for sm_80, sm_90 and sm_100, and PTX for what comes later. Empty without a CUDA compiler.
# The output groups ptx, log and sass have what tests look at: the PTX, what the assembler said of each kernel, and what
# the disassembler, where there is one, finds in it.
cuda_fatbin = rule(
    implementation = _cuda_fatbin,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [
            ".h",
            ".inc",
        ]),
        "_compile": attr.label(
            default = "//third_party/cuda:compile_fatbin",
            executable = True,
            allow_single_file = True,
            cfg = "host",
        ),
    },
)

# With the data's checksum: the compiler does not tell Bazel of what .incbin reads, so that the source itself must change
# with it.
def _embedded_source_impl(ctx):
    output = ctx.actions.declare_file(ctx.label.name + ".S")
    template = ctx.actions.declare_file(ctx.label.name + ".template")
    ctx.actions.write(template, """\
    .section .rodata
    .balign 64
    .globl {symbol}
    .hidden {symbol}
{symbol}:
    .incbin "{path}"
    .globl {symbol}_end
    .hidden {symbol}_end
{symbol}_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
""".format(symbol = ctx.attr.symbol, path = ctx.file.data.path))
    ctx.actions.run_shell(
        command = 'set -e; sum=$(sha256sum <"$1"); echo "/* $sum */" | cat - "$2" >"$3"',
        arguments = [ctx.file.data.path, template.path, output.path],
        inputs = [ctx.file.data, template],
        outputs = [output],
        mnemonic = "EmbeddedSource",
    )
    return [DefaultInfo(files = depset([output]))]

_embedded_source = rule(
    implementation = _embedded_source_impl,
    attrs = {
        "data": attr.label(allow_single_file = True, cfg = "host", mandatory = True),
        "symbol": attr.string(mandatory = True),
    },
)

def _host_file_impl(ctx):
    return [DefaultInfo(files = depset([ctx.file.data]), runfiles = ctx.runfiles([ctx.file.data]))]

# A file as the tools' configuration makes it: so that all configurations share one compilation.
host_file = rule(
    implementation = _host_file_impl,
    attrs = {"data": attr.label(allow_single_file = True, cfg = "host", mandatory = True)},
)

def embedded_file(name, data, symbol):
    """An assembler source whose read-only data is the file `data`, from `symbol` to `symbol`_end.

    For the srcs of a library, whose textual_hdrs have NAME_data: an input of the assembler.
    """
    _embedded_source(name = name, data = data, symbol = symbol)
    host_file(name = name + "_data", data = data)
