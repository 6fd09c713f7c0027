#!/usr/bin/env bash
# clang-tidy on the torch-free layers, with the compile commands of a torch-free build without tests. A unity build's files are
# read sixteen at a time, which takes a fifth of the time: most of it goes into the headers that they share.
#   scripts/lint.sh BUILD_FOLDER
set -euo pipefail
folder=$1
mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$folder/compile_commands.json" | sort -u |
  while read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done)  # generated ones have not been made
[ "${#files[@]}" -gt 0 ] || { echo "lint: $folder/compile_commands.json names no file" >&2; exit 1; }
# Including sources is what a unity build does.
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy-14 -p "$folder" --quiet --warnings-as-errors='*' \
  --checks=-bugprone-suspicious-include 2>/dev/null
