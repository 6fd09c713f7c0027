// `dtrain host-probe`, which other hosts' dtrain starts here over a remote shell: says what this host is and has, and
// measures connections. One JSON object a line on standard input, one for each on standard output, until the input
// ends. One thread.
#pragma once

namespace dtrain::run {

// Returns the exit code.
int host_probe();

}  // namespace dtrain::run
