#!/usr/bin/env bash
# Runs fuzz targets (tests/fuzz) of the preset `fuzz`, two at a time, and prints one line for each, and the number of inputs in all.
#   scripts/fuzz.sh SECONDS [TARGET ...]      all targets when none is named
# What a run finds out is kept in build/fuzz/corpus/TARGET, where the next run goes on. Exit status 1: something was found.
set -uo pipefail
cd "$(dirname "$0")/.."
readonly folder=build/fuzz

fuzz_one() {
  local target=$1 seconds=$2 corpus=$folder/corpus/$1 findings=$folder/findings/$1 log=$folder/$1.log options=() file
  mkdir -p "$corpus" "$findings"
  rm -f "$findings"/*
  file=tests/fuzz/dictionaries/$target.dict
  [ ! -e "$file" ] || options+=("-dict=$file")
  nice -n 10 "$folder/bin/fuzz_$target" -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=3072 \
    -print_final_stats=1 -artifact_prefix="$findings/" "${options[@]}" "$corpus" "tests/fuzz/seeds/$target" >"$log" 2>&1
  local status=$?
  stat_of() { sed -n "s/^stat::$1: *//p" "$log" | tail -n 1; }
  local runs rate added coverage
  runs=$(stat_of number_of_executed_units) rate=$(stat_of average_exec_per_sec) added=$(stat_of new_units_added)
  coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2)
  printf '%-16s %10s runs  %7s/s  coverage %5s  new units %5s  %s\n' "$target" "${runs:-?}" "${rate:-?}" "${coverage:-?}" \
    "${added:-?}" "$([ $status -eq 0 ] && echo clean || echo FOUND)"
  [ $status -eq 0 ] && return 0
  grep -m 3 -E 'ERROR: |runtime error: |what\(\)|SUMMARY: ' "$log" | sed 's/^/  /'
  for file in "$findings"/*; do
    [ -e "$file" ] && printf '  again: %s %s\n  then:  fix it, and move the input to tests/fuzz/crashes/%s/\n' "$folder/bin/fuzz_$target" "$file" "$target"
  done
  [ -n "$(ls -A "$findings")" ] || tail -n 5 "$log" | sed 's/^/  /'
  return 1
}

if [ "${1:-}" = --one ]; then fuzz_one "$3" "$2"; exit; fi
seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET ...]}
shift
[ $# -gt 0 ] || mapfile -t targets < <(cd tests/fuzz/seeds && printf '%s\n' *)
[ $# -eq 0 ] || targets=("$@")
for target in "${targets[@]}"; do
  [ -x "$folder/bin/fuzz_$target" ] || { echo "fuzz: no $folder/bin/fuzz_$target; 'make fuzz' builds all targets" >&2; exit 2; }
done
status=0
printf '%s\n' "${targets[@]}" | xargs -P 2 -n 1 "$0" --one "$seconds" || status=1
for target in "${targets[@]}"; do sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$target.log" | tail -n 1; done |
  awk '{ runs += $1 } END { printf "fuzz: %d inputs in all\n", runs }'
exit $status
