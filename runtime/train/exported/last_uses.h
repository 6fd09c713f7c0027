// When values are let go: each after the last instruction that uses it, as in Python, where a local variable goes out
// of use. Parameters, buffers and constants stay.
#pragma once

#include "exported/program.h"

namespace dtrain::exported {

// Sets Operand::last_use, and results that nothing uses to kNoValue.
void mark_last_uses(Program& program);

}  // namespace dtrain::exported
