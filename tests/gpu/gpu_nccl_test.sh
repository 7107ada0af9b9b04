#!/bin/bash
# gpu_nccl and gpu_late work on the stand-ins for the driver and for NCCL, and say so where NCCL or the driver is missing
# or refuses.
set -euo pipefail
# A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later, and falls.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:intercept_tls_get_addr=0
run=$1 nccl=$2 late=$3 library=$PWD/$4 driver=$PWD/$5

for sharing in sockets shared; do
  out=$("$run" --no-prefix -np 3 "$nccl" "$library" "$sharing" "$driver" 70000) || { echo "$out"; exit 1; }
  echo "$out"
  [[ $out == *"NCCL 23000, $sharing"* && $(grep -c 'bus, right$' <<<"$out") -eq 3 ]]
done
status=0
out=$("$run" --no-prefix -np 1 "$nccl" /nonexistent/libnccl.so.2 sockets "$driver") || status=$?
[[ $status -eq 78 && $out == "not run: "* ]]
status=0
"$nccl" "$library" sockets /nonexistent/libcuda.so.1 || status=$?
[[ $status -eq 77 ]]

out=$("$run" --no-prefix -np 2 "$late" "$driver" "$library" 20 3 4096) || { echo "$out"; exit 1; }
echo "$out"
[[ $(grep -c '^late peer, .* loses ' <<<"$out") -eq 3 ]]
out=$("$run" --no-prefix -np 2 "$late" "$driver" /nonexistent/libnccl.so.2 20 1 4096) || { echo "$out"; exit 1; }
[[ $(grep -c '^late peer, .* loses ' <<<"$out") -eq 2 && $out == *"NCCL: not run: "* ]]
