// Views of a whole tensor in its own shape, such as x[:, :] and x.view(x.shape). Python skips some of these views; an
// exported program has all of them, and each would cost a step of backward.
#pragma once

#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

// True if the operator returns its first operand unchanged for batches of all sizes. `from` and `to`: the descriptions
// of the operand and of the result in the file; null: there is none.
bool is_whole_view(const Instruction& instruction, const Json* from, const Json* to);

}  // namespace dtrain::exported
