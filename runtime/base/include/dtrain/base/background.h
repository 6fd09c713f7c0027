// Set-up of the processes that run beside the ranks (dtrain-agent, dtrain-saver).
#pragma once

#include <filesystem>

namespace dtrain {

// Ignores SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE, because this process finishes its work and ends after the
// ranks. It should lead a process group but no session: Linux may share the cores evenly between sessions (autogroup).
// In a session of its own, such a process got 2% of a core beside busy ranks (Linux 6.18).
void ignore_polite_ends();
// Appends the standard output and error to `log`, or discards them if `log` is empty or cannot be opened. So a reader
// of the starter's output does not wait for this process to end. Standard input becomes empty.
void redirect_output(const std::filesystem::path& log);

}  // namespace dtrain
