#include "model/weights.h"

#include <sstream>

#include "dtrain/base/error.h"
#include "model/flat_parameters.h"
#include "model/safetensors.h"

namespace dtrain::train {

namespace {

NamedTensors state_of(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& parameter : distinct_parameters(model)) {
    for (const auto& name : parameter.names) tensors.emplace_back(name, parameter.tensor);
  }
  for (const auto& item : model.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

}  // namespace

void save_weights(const torch::nn::Module& model, const std::filesystem::path& path) {
  std::error_code error;  // a folder that could not be made shows when the file is written
  std::filesystem::create_directories(path.parent_path(), error);
  write_safetensors(path, state_of(model), {{"format", "pt"}});
}

void load_weights(torch::nn::Module& model, const std::filesystem::path& path) {
  auto loaded = read_safetensors(path);
  std::ostringstream problems;
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state_of(model)) {
    const auto found = loaded.find(name);
    if (found == loaded.end()) {
      problems << "\n  '" << name << "' is not in the file";
      continue;
    }
    if (found->second.sizes() != tensor.sizes()) {
      problems << "\n  '" << name << "' is " << found->second.sizes() << " in the file and " << tensor.sizes()
               << " in the model";
    } else if (found->second.scalar_type() != tensor.scalar_type()) {
      problems << "\n  '" << name << "' is " << c10::getDtypeNames(found->second.scalar_type()).first
               << " in the file and " << c10::getDtypeNames(tensor.scalar_type()).first << " in the model";
    } else {
      at::Tensor target = tensor;
      target.copy_(found->second);
    }
    loaded.erase(found);
  }
  for (const auto& [name, tensor] : loaded) problems << "\n  '" << name << "' is in the file but not in the model";
  if (!problems.str().empty()) {
    throw ConfigError("initial_weights: " + path.string() + " does not fit the model:" + problems.str(),
                      "give the weights of the same model, by its parameters' names and in their types");
  }
}

}  // namespace dtrain::train
