#!/bin/bash
# gpu_probe finds nothing wrong with the stand-in for the driver, and says so where there is no driver.
set -euo pipefail
# A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later, and falls.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:intercept_tls_get_addr=0
probe=$1 stand_in=$PWD/$2

status=0
"$probe" /nonexistent/libcuda.so.1 || status=$?
[[ $status -eq 77 ]]
out=$("$probe" "$stand_in" 50) || { echo "$out"; exit 1; }
echo "$out"
if [[ $out == *FAILED* || $(grep -cE '^(ok|not run) ' <<<"$out") -ne 22 ]]; then exit 1; fi
[[ $out == *"not run memory of another GPU: it takes two GPUs"* ]]
out=$(CUDA_VISIBLE_DEVICES=0,1 "$probe" "$stand_in" 50) || { echo "$out"; exit 1; }
[[ $out == *"ok memory of another GPU"* && $out != *FAILED* ]] || { echo "$out"; exit 1; }
