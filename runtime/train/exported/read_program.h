// Reads an exported program from its archive: the graph, the names of its inputs and outputs, the constraints on its
// sizes. Everything that is not supported is refused here, by name.
#pragma once

#include "exported/archive.h"
#include "exported/program.h"

namespace dtrain::exported {

// ConfigError names everything that is not supported, or what is damaged, and for a program that `is_trained` also lost
// backward code (lost_backward.h). weights.h reads the tensors.
Program read_program(const Archive& archive, bool is_trained);

}  // namespace dtrain::exported
