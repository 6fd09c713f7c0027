// What the processes that work beside the ranks (dtrain-agent, dtrain-saver) do first.
#pragma once

#include <filesystem>

namespace dtrain {

// A terminal's Ctrl-C, its hang-up and a batch system's polite stop are for the ranks: this process finishes its work
// and ends after them. It should lead a process group but no session: Linux may share the cores between sessions
// (autogroup), and alone in one of its own such a process got 2% of a core beside busy ranks (Linux 6.18).
void ignore_polite_ends();
// Output goes to the end of `log`, or nowhere where that is empty or cannot be opened: a reader that waits for the end
// of the starter's output must not wait for this process.
void redirect_output(const std::filesystem::path& log);

}  // namespace dtrain
