// Reads an exported program from its archive: the graph, the names of its inputs and outputs, what its sizes must
// satisfy. What cannot be run here is refused now, with its name.
#pragma once

#include "exported/archive.h"
#include "exported/program.h"

namespace dtrain::exported {

// ConfigError names everything that is not supported, or what is damaged; where the program `is_trained`, also what its
// gradients would lack (lost_backward.h). Tensors are read elsewhere (weights.h).
Program read_program(const Archive& archive, bool is_trained);

}  // namespace dtrain::exported
