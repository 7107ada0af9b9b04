#!/bin/bash
# A microbenchmark, each part of it run for a moment: ends well, skips nothing, and reports what is asked for.
#   run_bench_test.sh PROGRAM FILTER LINE...     LINE is the beginning of a line of the report
set -euo pipefail

report=$("$1" --benchmark_min_time=0.001 --benchmark_filter="$2")
echo "$report"
if grep -q 'ERROR OCCURRED' <<<"$report"; then
  echo "a benchmark was skipped with an error" >&2
  exit 1
fi
for line in "${@:3}"; do
  grep -q "^$line" <<<"$report" || { echo "no line begins with '$line'" >&2; exit 1; }
done
