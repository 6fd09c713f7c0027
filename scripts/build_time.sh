#!/usr/bin/env bash
# Where a build's time goes, from what ninja wrote down of it: the ten most expensive files, and how many files are compiled
# again when a public header is touched, with the seconds that took last time.
#
#   scripts/build_time.sh [BUILD_FOLDER]     build/release where none is given; build it from nothing before
#   scripts/build_time.sh --demo             builds what `make demo` builds, from nothing, without a compiler cache, in a folder of
#                                            its own, and prints the seconds: demo_build_s
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --demo ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  export CCACHE_DIR=$folder/cache
  cmake --preset release -B "$folder/build" -DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
  targets=$(make -s demo-targets)
  started=$(date +%s.%N)
  # shellcheck disable=SC2086  # a list
  ninja -C "$folder/build" -j "${JOBS:-$(nproc)}" $targets >"$folder/log" 2>&1 || { tail -n 60 "$folder/log"; exit 1; }
  awk -v from="$started" -v to="$(date +%s.%N)" -v cores="$(nproc)" 'BEGIN {
    printf "{\"demo_build_s\": %.0f, \"cores\": %d}\n", to - from, cores }'
  exit
fi
build=${1:-build/release}
[ -f "$build/.ninja_log" ] || { echo "build_time.sh: $build has not been built: make build" >&2; exit 1; }

# The last line of a file counts: ninja appends one each time it makes it. Columns: start and end in ms, time, file, hash.
seconds_of_each() {
  awk -F'\t' 'NR > 1 && $4 ~ /\.(o|gch)$/ { took[$4] = ($2 - $1) / 1000 } END { for (file in took) print took[file], file }' \
    "$build/.ninja_log"
}

echo "compiler time: $(seconds_of_each | awk '{ sum += $1; files += 1 } END { printf "%.0f s in %d files", sum, files }')"
echo
echo "seconds  file"
seconds_of_each | sort -rn | head -10 | awk '{ printf "%7.1f  %s\n", $1, $2 }'
echo
echo "files  seconds  public header"
{
  seconds_of_each
  ninja -C "$build" -t deps
} | awk -v source="$PWD/" '
  $1 ~ /^[0-9.]+$/ && NF == 2 { took[$2] = $1; next }
  / #deps / { object = $1; sub(/:$/, "", object); next }
  index($1, source) == 1 && $1 ~ /\/include\/dtrain\// && $1 !~ /\/tests\// {
    header = substr($1, length(source) + 1)
    files[header] += 1
    seconds[header] += took[object]
  }
  END { for (header in files) printf "%5d  %7.0f  %s\n", files[header], seconds[header], header }' | sort -rn
