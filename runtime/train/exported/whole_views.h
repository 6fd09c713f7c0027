// Views of a whole tensor in its own shape, such as x[:, :] and x.view(x.shape). Python skips some of them; an exported
// program has them all, and each would cost a step of backward.
#pragma once

#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

// Whether the operator returns its first operand as it is, whatever the sizes of the batch are. `from` and `to`: what
// the file says of that operand and of the result; null: nothing.
bool is_whole_view(const Instruction& instruction, const Json* from, const Json* to);

}  // namespace dtrain::exported
