#!/usr/bin/env bash
# libannulus.so exports exactly the functions that annulus.h declares.
set -euo pipefail
header=$1
library=$2
declared=$(grep '^ANNULUS_API' -A1 "$header" | grep -oE 'annulus_[a-z_]+\(' | tr -d '(' | sort -u)
exported=$(nm -D --defined-only "$library" | awk '$2 ~ /^[B-Z]$/ {print $3}' | sed 's/@.*//' | sort -u)
if [[ -z $declared || $declared != "$exported" ]]; then
  echo "annulus.h (<) and the library's exports (>) differ:"
  diff <(echo "$declared") <(echo "$exported")
  exit 1
fi
echo "$(echo "$exported" | wc -l) symbols, as declared"
