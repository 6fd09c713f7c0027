// The stacks of a rank's threads, which signals make them write (dtrain/base/pulse.h), as text for people.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/pulse.h"

namespace dtrain::launcher {

struct ThreadStacks {
  std::string text;                // all threads, Python's first, the training thread before the others
  std::vector<std::string> calls;  // of the training thread, the innermost first: of Python if it has any, else of C++
  std::string place;               // the innermost of them in the user's own code; empty: not known
};

// Makes the threads of a rank write their stacks, and returns them. A process that is stopped (SIGSTOP) is continued
// for it. Takes a few seconds at most; threads that do not answer are left out. `memory`: the pulse with the text
// behind it.
ThreadStacks take_stacks(pid_t pid, const PulsePage& page, std::span<const std::byte> memory, bool stopped);

// Returns the stacks in a text that the signals' handlers have written. `program`: the name of the process's program;
// `file`: that program, for the names of functions that it does not export.
ThreadStacks read_stacks(std::string_view text, const std::string& program, const std::string& file);

}  // namespace dtrain::launcher
