#!/usr/bin/env bash
# Runs two commands at the same time, of which only the second one is heard; what the first one says goes into LOG, and is shown if it
# fails. Ends when both have ended, with the exit status of the one that failed.
#   scripts/beside.sh TITLE LOG COMMAND ... -- COMMAND ...
set -euo pipefail
title=$1 log=$2
shift 2
first=()
while [ "$1" != -- ]; do
  first+=("$1")
  shift
done
shift
set -m  # a process group of its own, which is ended with all that it has started
"${first[@]}" >"$log" 2>&1 </dev/null &
set +m
beside=$!
trap 'kill -- "-$beside" 2>/dev/null || true' EXIT
status=0
"$@" || status=$?
[ "$status" -eq 0 ] || exit "$status"
if kill -0 "$beside" 2>/dev/null; then echo "waiting for $title ($log says how far they are)"; fi
wait "$beside" || status=$?
if [ "$status" -ne 0 ]; then
  cat "$log"
  echo "$title: '${first[*]}' failed" >&2
fi
exit "$status"
