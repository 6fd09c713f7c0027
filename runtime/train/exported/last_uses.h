// Values are released after the last instruction that uses them, as Python releases a tensor with its last variable.
// Parameters, buffers and constants stay.
#pragma once

#include "exported/program.h"

namespace dtrain::exported {

// Sets Operand::last_use, and results that nothing uses to kNoValue.
void mark_last_uses(Program& program);

}  // namespace dtrain::exported
