#include "worker/fixed_modes.h"

#include <algorithm>
#include <array>
#include <utility>

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

namespace dtrain::worker {

namespace {

// The operators that behave differently in training, with the name of the argument for the mode.
constexpr std::array<std::pair<const char*, const char*>, 5> kModalOperators{
    {{"aten::batch_norm", "training"},
     {"aten::dropout", "train"},
     {"aten::alpha_dropout", "train"},
     {"aten::feature_dropout", "train"},
     {"aten::feature_alpha_dropout", "train"}}};

void find_fixed_modes(const torch::jit::Block& block, std::vector<std::string>& found) {
  for (const torch::jit::Node* node : block.nodes()) {
    for (const auto& [name, argument] : kModalOperators) {
      if (std::string(node->kind().toQualString()) != name || !node->hasNamedInput(argument)) continue;
      const auto mode = torch::jit::toIValue(node->namedInput(argument));
      const std::string operation = std::string(name).substr(std::string("aten::").size());
      const bool known = std::find(found.begin(), found.end(), operation) != found.end();
      if (mode && mode->isBool() && mode->toBool() && !known) found.push_back(operation);
    }
    for (const torch::jit::Block* inner : node->blocks()) find_fixed_modes(*inner, found);
  }
}

}  // namespace

std::vector<std::string> always_training(const torch::jit::Module& script) {
  const auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);  // inlines forward() of submodules
  std::vector<std::string> found;
  find_fixed_modes(*graph->block(), found);
  return found;
}

}  // namespace dtrain::worker
