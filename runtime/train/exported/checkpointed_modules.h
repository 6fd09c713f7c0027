// Gradient checkpointing of an exported program: the parts of it that keep only their inputs, and are computed again in
// backward. A part is what the program does one after another in a module that was chosen by name.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "exported/program.h"

namespace dtrain::exported {

struct CheckpointedPart {
  std::string module;               // "blocks.0"
  std::size_t first = 0, last = 0;  // of Program::instructions: from first, up to but not including last
  std::vector<Value> inputs;        // made before the part, and used in it; without parameters, buffers and constants
  std::vector<Value> last_used;     // of the inputs: those that nothing needs after the part
  std::vector<Value> outputs;       // made in the part, and needed after it
};

// The parts of modules whose names match one of `patterns`, which vertical bars divide; * stands for any text. Of
// modules within each other the outermost one counts. Where a no_grad or autocast region reaches beyond a module, or
// the program does something else between two of its operators, a module has several parts. A part has two operators
// at least. ConfigError, which begins with `key`, if there is none, or if a module writes its input in place.
std::vector<CheckpointedPart> checkpointed_parts(const Program& program, const std::string& patterns,
                                                 const std::string& key);

}  // namespace dtrain::exported
