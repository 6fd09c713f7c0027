#include "checkpoint/trial_state.h"

#include <ATen/ATen.h>

#include "model/weights.h"

namespace dtrain::train {

void TrialStateEntries::visit(StateVisitor& visitor) {
  TrialState state;
  if (!visitor.replaces()) state = save_();
  // The names, types and shapes of the tensors, so that load_state() has tensors into which values are read.
  Json kinds = Json::object();
  for (const auto& [name, tensor] : state.tensors) {
    kinds[name] = {{"dtype", safetensors_name(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}};
    // Kernels may round differently if the layout in memory differs, as in an optimizer's state in channels_last.
    if (!tensor.is_contiguous() && tensor.is_non_overlapping_and_dense())
      kinds[name]["strides"] = tensor.strides().vec();
  }
  std::string text;
  if (!visitor.replaces()) text = Json{{"values", state.values}, {"tensors", kinds}}.dump();
  visitor.text("state", text);
  if (visitor.replaces() && text.empty()) return;  // the checkpoint has no such entry
  if (visitor.replaces()) {
    const Json told = Json::parse(text);
    state.values = told["values"];
    for (const auto& [name, kind] : told["tensors"].items()) {
      const auto numbers = [&kind = kind](const char* key) { return kind[key].get<std::vector<std::int64_t>>(); };
      const auto options = at::TensorOptions().dtype(scalar_type_of(kind["dtype"].get<std::string>()));
      state.tensors[name] = kind.contains("strides") ? at::empty_strided(numbers("shape"), numbers("strides"), options)
                                                     : at::empty(numbers("shape"), options);
    }
  }
  for (auto& [name, tensor] : state.tensors) visitor.tensor(name, tensor);
  if (visitor.replaces()) load_(state);
}

}  // namespace dtrain::train
