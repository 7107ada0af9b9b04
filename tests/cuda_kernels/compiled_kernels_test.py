#!/usr/bin/env python3
"""What the CUDA compiler made of the kernels: all are there, none spills registers, vectors are moved whole, and no
multiply-add is contracted. Passes, saying so, where Annulus was built without a CUDA compiler.

compiled_kernels_test.py PTX LOG SASS
"""

import re
import sys

TYPES = "int32 int64 float16 bfloat16 float32 float64 int8 uint8 uint32 uint64 float8_e4m3 float8_e5m2 int16 uint16".split()
KERNELS = {f"annulus_{t}_{op}" for t in TYPES for op in "sum prod min max".split()}
KERNELS |= {f"annulus_uint8_{op}" for op in "band bor bxor".split()}
KERNELS |= {f"annulus_complex{bits}_prod" for bits in (64, 128)}
GPUS = {"sm_80", "sm_90", "sm_100"}
# A block has 512 threads, and a multiprocessor 65,536 registers.
MOST_REGISTERS = 128


def check_log(text):
    """Yields what is wrong with the compiler's numbers: "GPU KERNEL REGISTERS SPILLED_BYTES" in each line."""
    seen = set()
    for line in text.splitlines():
        gpu, kernel, registers, spilled = line.split()
        seen.add((gpu, kernel))
        if int(spilled) > 0:
            yield f"{kernel} on {gpu} spills {spilled} bytes"
        if int(registers) > MOST_REGISTERS:
            yield f"{kernel} on {gpu} takes {registers} registers"
    wanted = {(gpu, kernel) for gpu in GPUS for kernel in KERNELS}
    yield from (f"{kernel} is missing for {gpu}" for gpu, kernel in sorted(wanted - seen))
    yield from (f"{kernel} on {gpu} is not expected" for gpu, kernel in sorted(seen - wanted))


def check_ptx(text):
    """Yields what is wrong with the code of each kernel."""
    kernels = re.split(r"\.entry ", text)[1:]
    names = set()
    for kernel in kernels:
        name = re.match(r"\w+", kernel).group()
        names.add(name)
        # 16 bytes, as four words or two; several of each source before the first is used.
        loads = len(re.findall(r"\bld\.global\.v(?:4\.[bu]32|2\.[bu]64)", kernel))
        stores = len(re.findall(r"\bst\.global\.v(?:4\.[bu]32|2\.[bu]64)", kernel))
        if loads < 4 or stores < 4:
            yield f"{name} has {loads} loads and {stores} stores of 16 bytes, at least 4 of each are expected"
        if re.search(r"\bld\.local|\bst\.local", kernel):
            yield f"{name} uses local memory"
        if re.search(r"\bfma\.rn\.(?:ftz\.)?f(?:32|64)", kernel):
            yield f"{name} contracts a multiply-add"
        if re.search(r"\.ftz\b|\.approx\b", kernel):
            yield f"{name} flushes subnormals or approximates"
    yield from (f"{kernel} is missing" for kernel in sorted(KERNELS - names))


def check_sass(text):
    """Yields what is wrong with the machine code: "GPU KERNEL LOADS STORES LOCAL" in each line, the loads and stores of 16
    bytes and the accesses to local memory."""
    seen = set()
    for line in text.splitlines():
        gpu, kernel, *counts = line.split()
        loads, stores, local = map(int, counts)
        seen.add((gpu, kernel))
        if loads < 4 or stores < 4:
            yield f"{kernel} on {gpu} has {loads} loads and {stores} stores of 16 bytes in its machine code, at least 4 of each are expected"
        if local:
            yield f"{kernel} on {gpu} accesses local memory {local} times"
    wanted = {(gpu, kernel) for gpu in GPUS for kernel in KERNELS}
    yield from (f"{kernel} has no machine code for {gpu}" for gpu, kernel in sorted(wanted - seen))


def main():
    ptx, log, sass = (open(path, encoding="utf-8").read() for path in sys.argv[1:4])
    if not ptx and not log:
        print("built without a CUDA compiler: there are no kernels to check")
        return
    wrong = list(check_log(log)) + list(check_ptx(ptx)) + (list(check_sass(sass)) if sass else [])
    print("\n".join(wrong) or "all kernels are as they should be")
    if not sass:
        print("their machine code was not looked at: the toolkit has no cuobjdump and nvdisasm")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
