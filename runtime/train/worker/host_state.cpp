#include "host_state.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

namespace dtrain::worker {

namespace {

// They change the list or dictionary that is their first argument.
constexpr std::array<std::string_view, 11> kChangesContainer{
    "aten::append",  "aten::extend", "aten::insert", "aten::pop",       "aten::remove", "aten::clear",
    "aten::reverse", "aten::sort",   "aten::update", "aten::_set_item", "aten::Delete"};

bool is_tensor(const torch::jit::Value& value) {
  return value.type()->isSubtypeOf(*c10::TensorType::get());
}

std::optional<std::string> find_change(const torch::jit::Block& block) {
  for (const torch::jit::Node* node : block.nodes()) {
    if (node->kind() == c10::prim::SetAttr && !is_tensor(*node->input(1))) return node->s(c10::attr::name);
    const std::string_view kind = node->kind().toQualString();
    const bool changes = std::find(kChangesContainer.begin(), kChangesContainer.end(), kind) != kChangesContainer.end();
    if (changes && node->input(0)->node()->kind() == c10::prim::GetAttr) {
      return node->input(0)->node()->s(c10::attr::name);
    }
    for (const torch::jit::Block* inner : node->blocks()) {
      if (auto found = find_change(*inner)) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> changed_attribute(const torch::jit::Module& script) {
  const auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);  // the submodules' forward() too
  return find_change(*graph->block());
}

}  // namespace dtrain::worker
