#!/usr/bin/env bash
# clang-tidy on the torch-free layers, with the compile commands of a torch-free build.
#   scripts/lint.sh BUILD_FOLDER
set -euo pipefail
folder=$1
mapfile -t files < <(git ls-files 'runtime/*.cpp' 'comm/*.cpp' 'scheduler/*.cpp' | grep -v '^runtime/train/')
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-14 -p "$folder" --quiet --warnings-as-errors='*' 2>/dev/null
