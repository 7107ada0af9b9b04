#!/bin/bash
# gpu_random finds nothing wrong on the stand-in for the driver, over both transports, and says so where there is no driver.
set -euo pipefail
# A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later, and falls.
run=$1 program=$2 stand_in=$PWD/$3 calls=100
[[ -z ${ASAN_OPTIONS:-}${TSAN_OPTIONS:-} ]] || calls=20
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:intercept_tls_get_addr=0
[[ -z ${TEST_SOAK:-} ]] || calls=10000

for ranks in 2 3; do
  for transport in shm tcp; do
    ANNULUS_TRANSPORT=$transport "$run" --no-prefix -np "$ranks" "$program" "$stand_in" "$calls" "$((ranks * 10))"
  done
done
# Each rank with a GPU of its own.
ANNULUS_TRANSPORT=shm "$run" --no-prefix -np 3 bash -c 'CUDA_VISIBLE_DEVICES=$ANNULUS_RANK exec "$@"' gpus "$program" "$stand_in" \
  "$calls" 40
status=0
"$program" /nonexistent/libcuda.so.1 || status=$?
[[ $status -eq 77 ]]
