"""Finds a CUDA toolkit on this machine: in $CUDA_HOME, in /usr/local/cuda, or where third_party/setup/install puts one.

CUDA_HOME=none: as if there were none. A compiler that cannot compile a small kernel with our flags, for want of a host
compiler that it knows or of a part of the toolkit, is passed over, so that it does not fail the build.

The repository has defs.bzl, with NVCC (the compiler's path, "" without a toolkit) and NVCC_VERSION, and the library
:cuda_h, which is the driver's header cuda.h where the toolkit has it. Headers come from here only for a test: the
library itself declares what it takes from the driver (cuda_kernels/driver).
"""

# The oldest release that compiles for sm_100.
OLDEST = (12, 8)

def _version_of(ctx, nvcc):
    """The release of a compiler, as (numbers, text), or None when it does not run."""
    result = ctx.execute([nvcc, "--version"])
    for line in result.stdout.split("\n"):
        if "release" in line and ", V" in line:
            text = line.split(", V")[1].strip()
            parts = text.split(".")
            return (int(parts[0]), int(parts[1])), text
    return None

# With what every kernel needs: headers of the host's C++ library too.
_TRIAL = """\
#include <cstdint>
#include <type_traits>
extern "C" __global__ void annulus_trial(uint32_t* value) { *value += sizeof(std::conditional_t<true, int, char>); }
"""

def _compiles(ctx, nvcc):
    """"" when the compiler does what the rule cuda_fatbin will ask for, or else its last line."""
    ctx.file("trial.cu", _TRIAL)
    result = ctx.execute(
        [ctx.path(Label("//third_party/cuda:compile_fatbin")), nvcc, "trial.cu", "trial.fatbin", "trial.ptx", "trial.log", "trial.sass"],
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        timeout = 120,
    )
    if result.return_code == 0:
        return ""
    lines = (result.stdout + result.stderr).strip().split("\n")
    return "it cannot compile: " + lines[-1]

def _folders(ctx):
    home = ctx.os.environ.get("HOME", "")
    named = ctx.os.environ.get("CUDA_HOME", "")
    if named == "none":
        return []
    return ([named] if named else []) + [
        "/usr/local/cuda",
        home + "/.cache/annulus/cuda-13.0.88/nvidia/cu13",
    ]

def _find(ctx):
    """(folder, version) of the first toolkit that is new enough, or None and why each was passed over."""
    reasons = []
    for folder in _folders(ctx):
        nvcc = ctx.path(folder + "/bin/nvcc")
        if not nvcc.exists:
            reasons.append("no " + str(nvcc))
            continue
        version = _version_of(ctx, nvcc)
        if version == None or version[0] < OLDEST:
            reasons.append("%s is %s, and %d.%d is needed" % (nvcc, version[1] if version else "broken", OLDEST[0], OLDEST[1]))
            continue
        wrong = _compiles(ctx, nvcc)
        if wrong:
            reasons.append("%s: %s" % (nvcc, wrong))
            continue
        return (folder, version[1]), reasons
    return None, reasons

def _cuda_toolkit(ctx):
    found, reasons = _find(ctx)
    folder, version = found if found else ("", "")
    if not found:
        # buildifier: disable=print
        print("\nNo CUDA compiler: Annulus is built without device kernels (%s).\n" % ("; ".join(reasons) or "CUDA_HOME is none") +
              "Where PyPI is reachable, third_party/setup/install cuda installs one, without root.")
    header = ctx.path(folder + "/include/cuda.h") if found else None
    has_header = header != None and header.exists
    if has_header:
        ctx.symlink(header, "include/cuda.h")
    ctx.file("defs.bzl", "NVCC = %r\nNVCC_VERSION = %r\n" % (folder + "/bin/nvcc" if found else "", version))
    ctx.file("BUILD", """\
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda_h",
    hdrs = %s,
    defines = %s,
    includes = ["include"],
)
""" % (
        '["include/cuda.h"]' if has_header else "[]",
        '["ANNULUS_HAS_CUDA_H"]' if has_header else "[]",
    ))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit,
    configure = True,
    environ = [
        "CUDA_HOME",
        "HOME",
    ],
    local = True,
)
