#!/bin/bash
# The scripts pass bash's own syntax check, and shellcheck's where that is installed.
set -euo pipefail
cd "$(dirname "$(realpath "${TEST_SRCDIR:-.}/${TEST_WORKSPACE:-.}/WORKSPACE")")"

mapfile -t scripts < <(grep -rlI --exclude-dir=.git --exclude-dir='bazel-*' -m 1 -E '^#!/bin/(ba)?sh' . |
  while read -r file; do [[ $(head -c 2 "$file") == '#!' ]] && echo "$file"; done | sort)
[[ ${#scripts[@]} -ge 4 ]] || { echo "only ${#scripts[@]} scripts under $PWD" >&2; exit 1; }
for script in "${scripts[@]}"; do
  bash -n "$script"
  [[ -x $script ]] || { echo "$script is not executable" >&2; exit 1; }
done
if command -v shellcheck >/dev/null; then
  shellcheck --severity=warning "${scripts[@]}"
else
  echo "shellcheck is not installed: syntax only"
fi
echo "${#scripts[@]} scripts"
