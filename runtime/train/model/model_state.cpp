#include "model/model_state.h"

#include "model/flat_parameters.h"

namespace dtrain::train {

void ModelState::visit(StateVisitor& visitor) {
  for (const auto& parameter : distinct_parameters(model_)) {
    if (!parameter.tensor.requires_grad())
      visitor.tensor("frozen/" + parameter.names.front(), parameter.tensor.detach());
  }
  for (const auto& buffer : model_.named_buffers()) {
    if (buffer.value().defined()) visitor.tensor("buffers/" + buffer.key(), buffer.value());
  }
}

}  // namespace dtrain::train
