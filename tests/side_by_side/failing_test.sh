#!/bin/bash
# A test that fails, or ends its process, fails the whole program, which tells its name; the others run all the same.
# One that hangs is told when the time for all is up.
set -uo pipefail
program=$1
export SIDE_BY_SIDE=4
"$program" >"$TEST_TMPDIR/log" || { cat "$TEST_TMPDIR/log"; echo "failed without a mishap"; exit 1; }
for mishap in failure abort; do
  if MISHAP=$mishap "$program" >"$TEST_TMPDIR/log"; then
    cat "$TEST_TMPDIR/log"
    echo "$mishap was overlooked"
    exit 1
  fi
  if ! grep -q "^\[  FAILED  \] Mishaps/ParameterTest.FailsWhereItIsAskedTo/$mishap$" "$TEST_TMPDIR/log" ||
    ! grep -q "^5 tests, 1 failed$" "$TEST_TMPDIR/log"; then
    cat "$TEST_TMPDIR/log"
    echo "$mishap: not told as it must be"
    exit 1
  fi
done
MISHAP=hang "$program" >"$TEST_TMPDIR/log" &
pid=$!
for ((tries = 0; tries < 300; ++tries)); do
  [[ -e $TEST_TMPDIR/hangs ]] && break
  sleep 0.1
done
kill -TERM "$pid"
if wait "$pid" || ! grep -q "^\[  FAILED  \] Mishaps/ParameterTest.FailsWhereItIsAskedTo/hang: time is up$" "$TEST_TMPDIR/log"; then
  cat "$TEST_TMPDIR/log"
  echo "what hangs was not told"
  exit 1
fi
