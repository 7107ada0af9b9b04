#!/bin/bash
# The bundle's parts are right on the stand-in for the driver, and say so where one fails or there is no GPU.
set -euo pipefail
# A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later, and falls.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:intercept_tls_get_addr=0
folder=$TEST_TMPDIR/bundle
mkdir "$folder"
cp "$1" "$folder/run"
shift
for program in "$@"; do ln -s "$PWD/$program" "$folder/"; done
export ROUNDS=50 MOST_BYTES=65536 TYPES=uint8 CALLS=20 LATE_MS=20 PERF_S=0.01
# NCCL itself does not work on the stand-in.
export NCCL=$folder/libnccl_stand_in.so

out=$(/sbin/ldconfig -p)
if [[ $out != *libcuda.so.1* ]]; then
  mv "$folder/libcuda.so.1" "$folder/hidden"
  status=0
  "$folder/run" || status=$?
  [[ $status -eq 77 ]]
  mv "$folder/hidden" "$folder/libcuda.so.1"
fi
out=$("$folder/run" probe check-2 types-2 random-2 perf-2 late-2 kill-3) || { echo "$out"; exit 1; }
echo "$out"
[[ $out != *FAILED* && $(grep -c '^# wrong elements: 0$' <<<"$out") -eq 6 ]]
[[ $(grep -c '^random calls of 2 ranks: 20 rounds' <<<"$out") -eq 2 ]]
[[ $(grep -c '^late peer, ' <<<"$out") -eq 3 ]]
[[ $(grep -c '^# buffers on GPU 0' <<<"$out") -eq 4 ]]
[[ $(grep -c 'peer lost: rank [0-2] died' <<<"$out") -ge 4 ]]
out=$(GPUS=1 "$folder/run" peers-2)
[[ $out == *"not run: 1 GPUs"* ]]
out=$(GPUS=2 "$folder/run" peers-2) || { echo "$out"; exit 1; }
[[ $(grep -c '^random calls of 2 ranks: 20 rounds' <<<"$out") -eq 1 ]]
# What a machine may lack.
if [[ -z $(command -v compute-sanitizer nvidia-cuda-mps-control) && ! -e /usr/local/cuda/bin/compute-sanitizer ]]; then
  out=$(NCCL=$folder/nowhere "$folder/run" sanitizer nccl-2 mps-2)
  echo "$out"
  [[ $out != *FAILED* && $(grep -c '^not run: ' <<<"$out") -eq 4 ]]
  mkdir "$folder/tools"
  # Stands in for the tool: runs the program.
  printf '#!/bin/bash\nwhile [[ $1 != ./* ]]; do shift; done\nexec "$@"\n' >"$folder/tools/compute-sanitizer"
  # Stands in for the daemon's control.
  printf '#!/bin/bash\necho "mps $*"\n' >"$folder/tools/nvidia-cuda-mps-control"
  chmod +x "$folder"/tools/*
  out=$(PATH=$folder/tools:$PATH "$folder/run" sanitizer nccl-2 mps-2) || { echo "$out"; exit 1; }
  echo "$out"
  [[ $out != *FAILED* && $out != *"not run: "* && $out == *"mps -d"* && $(grep -cE '^(ok|not run) ' <<<"$out") -eq 22 ]]
  [[ $(grep -c '^NCCL allreduce, s.* right$' <<<"$out") -eq 6 ]]
fi
rm "$folder/gpu_collectives"
status=0
out=$("$folder/run" check-2) || status=$?
[[ $status -eq 1 && $out == *"== check-2: FAILED"* ]]
