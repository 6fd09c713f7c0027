// Which line of a Python program has issued an operation?
#pragma once

#include <string>
#include <vector>

#include "dtrain/torch_distributed/source_line.h"

namespace dtrain::python {

// Returns the line of the innermost frame of this thread whose file is not skipped. A thread that has never run Python
// has none.
torch_distributed::SourceLine find_source_line();
// Skips files whose paths begin so: those of libraries.
void skip_source_lines_of(std::vector<std::string> paths);

}  // namespace dtrain::python
