#include "worker/host_state.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

namespace dtrain::worker {

namespace {

// These operators change the list or dictionary that is their first argument.
constexpr std::array<std::string_view, 13> kChangesContainer{
    "aten::append",     "aten::extend",    "aten::insert",  "aten::pop",  "aten::popitem",
    "aten::remove",     "aten::clear",     "aten::reverse", "aten::sort", "aten::update",
    "aten::setdefault", "aten::_set_item", "aten::Delete"};

// True for parameters and buffers, which training handles.
bool is_known(const torch::jit::Value& module, const std::string& attribute) {
  const auto type = module.type()->cast<c10::ClassType>();
  if (!type) return false;
  const auto slot = type->findAttributeSlot(attribute);
  return slot && (type->is_buffer(*slot) || type->is_parameter(*slot));
}

// Returns the attribute that the node changes; empty: none.
std::optional<std::string> changed_by(const torch::jit::Node& node) {
  if (node.kind() == c10::prim::SetAttr && !is_known(*node.input(0), node.s(c10::attr::name))) {
    return node.s(c10::attr::name);
  }
  if (node.kind() == c10::prim::CallMethod) return node.s(c10::attr::name);  // an interface's effect is unknown here
  if (node.inputs().empty() || node.input(0)->node()->kind() != c10::prim::GetAttr) return std::nullopt;
  const torch::jit::Node& get = *node.input(0)->node();
  const std::string_view kind = node.kind().toQualString();
  const bool in_place = kind.starts_with("aten::") && kind.ends_with("_") && !kind.ends_with("__");
  const bool changes =
      in_place || std::find(kChangesContainer.begin(), kChangesContainer.end(), kind) != kChangesContainer.end();
  if (changes && !is_known(*get.input(0), get.s(c10::attr::name))) return get.s(c10::attr::name);
  return std::nullopt;
}

std::optional<std::string> find_change(const torch::jit::Block& block) {
  for (const torch::jit::Node* node : block.nodes()) {
    if (auto found = changed_by(*node)) return found;
    for (const torch::jit::Block* inner : node->blocks()) {
      if (auto found = find_change(*inner)) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> changed_attribute(const torch::jit::Module& script) {
  const auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);  // inlines forward() of submodules
  return find_change(*graph->block());
}

}  // namespace dtrain::worker
