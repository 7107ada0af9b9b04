#!/bin/bash
# gpu_collectives is right on the stand-in for the driver, over both transports, and says so where there is no driver.
set -euo pipefail
# A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later, and falls.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:intercept_tls_get_addr=0
run=$1 program=$2 stand_in=$PWD/$3

# Calls in a stream of 16 KiB and more are folds, in pieces of 512 KiB.
export ANNULUS_STREAM_FOLD_BYTES=1048576
for transport in shm tcp; do
  ANNULUS_TRANSPORT=$transport "$run" --no-prefix -np 3 "$program" "$stand_in" 1000000
done
# Each rank with a GPU of its own.
ANNULUS_TRANSPORT=shm "$run" --no-prefix -np 3 bash -c 'CUDA_VISIBLE_DEVICES=$ANNULUS_RANK exec "$@"' gpus "$program" "$stand_in" \
  1000000
status=0
"$program" /nonexistent/libcuda.so.1 || status=$?
[[ $status -eq 77 ]]
