#!/bin/bash
# Every C and C++ file looks as clang-format 14 (Debian 12's) writes it with .clang-format. To mend what this finds:
#   clang-format -i FILE...
set -euo pipefail
cd "$(dirname "$(realpath "${TEST_SRCDIR:-.}/${TEST_WORKSPACE:-.}/WORKSPACE")")"

# Each version has its own taste: another one would complain about what 14 wrote.
version=$(clang-format --version 2>/dev/null | grep -o 'version [0-9]*' || true)
if [[ $version != "version 14" ]]; then
  echo "SKIPPED: needs clang-format 14 (package clang-format), found ${version:-none}"
  exit 0
fi

mapfile -t files < <(find base bench collectives cuda_kernels docs frameworks tests transport -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) | sort)
[[ ${#files[@]} -gt 0 ]] || { echo "no sources under $PWD" >&2; exit 1; }
mapfile -t bad < <(clang-format --dry-run "${files[@]}" 2>&1 | grep -oE '^[^ :]+:[0-9]+:[0-9]+: (warning|error)' |
  cut -d: -f1 | sort -u)
echo "${#files[@]} files, ${#bad[@]} not formatted"
[[ ${#bad[@]} -eq 0 ]] || { echo "To mend: clang-format -i ${bad[*]}"; exit 1; }
