// Gradient checkpointing of an exported program: the parts of it that keep only their inputs, and are computed again in
// backward. A part is a run of consecutive instructions of one chosen module.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "exported/program.h"

namespace dtrain::exported {

struct CheckpointedPart {
  std::string module;               // "blocks.0"
  std::size_t first = 0, last = 0;  // indices in Program::instructions; last is not included
  std::vector<Value> inputs;        // made before the part, used in it; no parameters, buffers and constants
  std::vector<Value> last_used;     // the inputs that nothing needs after the part
  std::vector<Value> outputs;       // made in the part, needed after it
};

// Returns the parts of the modules whose names match one of `patterns`, which vertical bars divide; * stands for any
// text. If both a module and a module around it match, the outermost counts. A module has several parts if a no_grad or
// autocast region reaches beyond it, or if instructions of other modules stand between its own. A part has at least two
// operators. ConfigError, which begins with `key`, if there is no part, or if a module writes its input in place.
std::vector<CheckpointedPart> checkpointed_parts(const Program& program, const std::string& patterns,
                                                 const std::string& key);

}  // namespace dtrain::exported
