#include "worker/exported_file.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/train/gradient_checkpointing.h"
#include "exported/evaluation_mode.h"

namespace dtrain::worker {

namespace {

constexpr std::size_t kMostNamed = 5;  // number of names in a warning

std::vector<std::string> names_of(const std::vector<exported::Input>& inputs) {
  std::vector<std::string> names;
  for (const exported::Input& input : inputs) names.push_back(input.name);
  return names;
}

std::vector<std::string> tensors_of(const std::vector<exported::Output>& outputs) {
  std::vector<std::string> names;
  for (const exported::Output& output : outputs) {
    if (output.is_tensor) names.push_back(output.name);
  }
  return names;
}

std::string some_of(std::vector<std::string> names) {
  const std::size_t left = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - left);
  return join(names, ", ") + (left > 0 ? " and " + std::to_string(left) + " more" : "");
}

// Converts features, for data sets have fewer integer types than models. Integers keep their values; a mask turns bool.
at::Tensor in_type(const at::Tensor& tensor, at::ScalarType type) {
  const at::ScalarType own = tensor.scalar_type();
  if (own == type) return tensor;
  const bool both_float = at::isFloatingType(own) && at::isFloatingType(type);
  const bool wider = at::isIntegralType(own, true) && at::isIntegralType(type, false) &&
                     c10::elementSize(type) > c10::elementSize(own);
  const bool mask = at::isIntegralType(own, false) && type == at::kBool;
  return both_float || wider || mask ? tensor.to(type) : tensor;
}

}  // namespace

ExportedFile::ExportedFile(const std::filesystem::path& file) : model_(file) {
  for (const at::Tensor& parameter : model_.tree()->parameters()) {
    if (!parameter.requires_grad()) continue;
    dtype_ = parameter.scalar_type();
    break;
  }
}

ExportedFile::ExportedFile(const std::filesystem::path& file, const ExportedFile& trained)
    : model_(file, *trained.model_.tree(), trained.model_.archive().file()), dtype_(trained.dtype_) {}

at::ScalarType ExportedFile::features_type() const {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (order_[i] == 0) return model_.program().inputs[i].type;
  }
  return dtype_;
}

void ExportedFile::refuse(const std::string& what, const std::string& remedy) const {
  throw ConfigError("model: " + model_.archive().file().string() + ": forward() " + what, remedy);
}

// Matches inputs by name if the data has the program's names for all of them, and otherwise by position.
void ExportedFile::check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) {
  const std::vector<std::string> own = names_of(model_.program().inputs);
  std::vector<std::string> described;
  for (const ModelInput& input : inputs) described.push_back(input.described);
  if (own.size() != inputs.size()) {
    refuse("takes " + std::to_string(own.size()) + " tensors (" + join(own, ", ") + "), not " +
               std::to_string(inputs.size()),
           "it is called with " + join_with_and(described) +
               ": name further tensors in data.more_inputs (safetensors), switch them on in the transform (tokens: "
               "mask, " +
               "lengths, positions, documents), or export it with these alone");
  }
  order_.assign(own.size(), 0);
  const auto place_of = [&](const ModelInput& input) {
    return static_cast<std::size_t>(std::find(own.begin(), own.end(), input.name) - own.begin());
  };
  const bool by_name =
      std::all_of(inputs.begin(), inputs.end(), [&](const ModelInput& input) { return place_of(input) < own.size(); });
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t named = place_of(inputs[i]);
    const std::size_t place = by_name ? named : i;
    if (named < own.size() && named != place) {
      refuse("takes " + join(own, ", ") + ", and the data's '" + inputs[i].name + "' stands where '" + own[place] +
                 "' is expected",
             "give all tensors the names that the model has for them, or put them in its order");
    }
    order_[place] = i;
  }
  for (const OutputChoice& output : outputs) index_of(output);
}

void ExportedFile::check_samples(std::int64_t samples, const std::string& which) const {
  try {
    model_.check_samples(samples);
  } catch (const Error& error) {
    throw ConfigError(which + ", which model: " + model_.archive().file().string() + " does not take: " + error.what(),
                      error.remedy());
  }
}

bool ExportedFile::returns_one_tensor() const {
  const auto& outputs = model_.program().outputs;
  return outputs.size() == 1 && outputs[0].name.empty();
}

std::size_t ExportedFile::index_of(const OutputChoice& choice) const {
  const auto& outputs = model_.program().outputs;
  const std::vector<std::string> tensors = tensors_of(outputs);
  const std::string listed = "its outputs are: " + join(tensors, ", ");
  if (choice.name.empty()) {
    if (tensors.size() != 1) {
      refuse("returns " + std::to_string(tensors.size()) + " tensors (" + join(tensors, ", ") + ")",
             "choose one of them with loss.output");
    }
    const auto only = std::find_if(outputs.begin(), outputs.end(), [](const auto& output) { return output.is_tensor; });
    return static_cast<std::size_t>(only - outputs.begin());
  }
  if (returns_one_tensor()) {
    throw ConfigError("model: " + model_.archive().file().string() + ": " + choice.key + " is '" + choice.name +
                          "', but the model's forward() returns one tensor",
                      "remove " + choice.key);
  }
  const auto found = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const exported::Output& output) { return output.name == choice.name; });
  if (found == outputs.end() || !found->is_tensor) {
    throw ConfigError("model: " + model_.archive().file().string() + ": " + choice.key + " is '" + choice.name +
                          "', but the model's forward() returns no such tensor",
                      listed);
  }
  return static_cast<std::size_t>(found - outputs.begin());
}

c10::IValue ExportedFile::forward(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> ordered(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i)
    ordered[i] = in_type(inputs[order_[i]], model_.program().inputs[i].type);
  return c10::List<at::Tensor>(model_.forward(ordered));
}

at::Tensor ExportedFile::output(const c10::IValue& returned, const OutputChoice& choice) const {
  return returned.toTensorList().get(index_of(choice));
}

void ExportedFile::checkpoint_modules(const std::string& patterns, const std::string& key) {
  model_.checkpoint_modules(patterns, key, train::run_checkpointed);
}

std::optional<FileModel::Warning> ExportedFile::fixed_mode(bool for_training, bool) const {
  if (!for_training) return std::nullopt;
  if (exported::is_in_evaluation_mode(model_.program())) {
    const auto idle = exported::modal_operators(model_.program());
    return Warning{
        "was exported in evaluation mode: " + join_with_and(idle) + (idle.size() == 1 ? " does" : " do") + " not train",
        "call model.train() before torch.export.export()"};
  }
  const std::vector<std::string> frozen = exported::modules_in_evaluation(model_.program());
  if (frozen.empty()) return std::nullopt;
  return Warning{"was exported with parts in evaluation mode, which they keep: " + some_of(frozen),
                 "that is right for frozen parts; otherwise call model.train() before torch.export.export()"};
}

std::optional<FileModel::Warning> ExportedFile::suspected_backward() const {
  const std::vector<std::string>& lines = model_.program().suspected_backward;
  if (lines.empty()) return std::nullopt;
  return Warning{
      "calls forward() of what is no module of the model: " + some_of(lines),
      "if it is a torch.autograd.Function, its backward is lost (docs/exporting.md#backward-code-of-your-own); "
      "a module from elsewhere is trained as in PyTorch"};
}

void ExportedFile::check_evaluation() const {
  const std::string& why = model_.program().why_no_evaluation;
  if (why.empty()) return;
  throw ConfigError("model: " + model_.archive().file().string() + " cannot be used for validation, because " + why +
                        ", and the file does not say whether evaluation does that",
                    "export the model once more after model.eval(), and name both files: model: {train: a.pt2, eval: "
                    "b.pt2}");
}

}  // namespace dtrain::worker
