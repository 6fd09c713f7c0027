# Shows that work which takes a while goes on: on a terminal by a line that changes, elsewhere by one every half minute. Sourced.

# with_progress FUNCTION COMMAND ...: the command's exit status. FUNCTION prints the line, or nothing.
with_progress() {
  local line_of=$1 status=0 watcher
  shift
  watch_progress "$line_of" &
  watcher=$!
  "$@" || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [ ! -t 1 ] || printf '\r\033[K'
  return "$status"
}

# Until it is killed, or the script has ended.
watch_progress() {
  local seconds=0 width
  while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    if [ -t 1 ]; then
      width=$(stty size <&1 2>/dev/null | cut -d' ' -f2) || width=80
      [ "${width:-0}" -gt 1 ] || width=80
      printf '\r\033[K%s' "$($1 | cut -c "-$((width - 1))")"
    elif ((seconds % 30 == 0)); then
      $1
    fi
  done
}
