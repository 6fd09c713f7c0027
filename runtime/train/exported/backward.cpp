#include "exported/graph_builder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>

#include "dtrain/base/text.h"

namespace dtrain::exported {
namespace {

constexpr std::size_t kMostShown = 3;
constexpr const char* kInOtherWords =
    "write it with operators that have the wanted gradient, as in x + (f(x) - x).detach(), which is f(x) with the "
    "gradient of x; or train the model with a script or a program (docs/exporting.md#backward-code-of-your-own)";
constexpr const char* kCallTheModule =
    "write it with operators that have the wanted gradient, as in x + (f(x) - x).detach(), which is f(x) with the "
    "gradient of x; if it is no autograd.Function but the forward() of a module, make the module in __init__() "
    "and call it (docs/exporting.md#backward-code-of-your-own)";
constexpr const char* kRemoveHook =
    "remove the hook before the export, or train the model with a script or a program "
    "(docs/exporting.md#backward-code-of-your-own)";
constexpr const char* kNotReentrant =
    "export the model without torch.utils.checkpoint, or with use_reentrant=False, and name the modules in "
    "optimizations.gradient_checkpointing of the experiment";

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool is_of_checkpoint(const CodeLine& line) {
  return line.file.ends_with("torch/utils/checkpoint.py");
}

// With strict=True torch.export names the source of each node, and the stack has functions of every name.
bool says_function(const Json& node) {
  return has(metadata_text(node, "source_fn_stack"), "autograd.Function");
}

// True for operators whose gradient is 0 everywhere: training through them takes custom backward code.
bool is_flat(const std::string& target) {
  constexpr std::array kFlat{"torch.ops.aten.sign.default",  "torch.ops.aten.round.default",
                             "torch.ops.aten.floor.default", "torch.ops.aten.ceil.default",
                             "torch.ops.aten.trunc.default", "torch.ops.aten.round.decimals"};
  return std::find(kFlat.begin(), kFlat.end(), target) != kFlat.end();
}

// True for modules with standard derivatives that many models take from a table or make in forward().
bool is_of_known_module(const CodeLine& line) {
  return (has(line.file, "/torch/nn/modules/") && !line.file.ends_with("_functions.py")) ||
         line.file.ends_with("/transformers/activations.py");
}

std::string quoted(const CodeLine& line) {
  return "'" + line.text + "' (" + line.file + ", line " + line.number + ")";
}

bool is_of_torch(const CodeLine& line) {
  return has(line.file, "/torch/_functorch/") || has(line.file, "/torch/_dynamo/") ||
         has(line.file, "/torch/autograd/");
}

std::string target_of(const Json& node) {
  const auto target = node.find("target");
  return target != node.end() && target->is_string() ? target->get<std::string>() : std::string();
}

// True for x.view_as(x). Autograd adds it if a function or a hook returns its input, and authors of gradient reversals
// write it.
bool views_itself(const Json& node) {
  if (target_of(node) != "torch.ops.aten.view_as.default") return false;
  const auto inputs = node.find("inputs");
  if (inputs == node.end() || !inputs->is_array() || inputs->size() != 2) return false;
  const auto argument = [&](std::size_t i) {
    return (*inputs)[i].is_object() ? (*inputs)[i].value("arg", Json()) : Json();
  };
  return argument(0).is_object() && argument(0) == argument(1);
}

// These operators return the tensor itself if it already has the wanted shape.
constexpr std::array<std::string_view, 7> kReshaping{
    "aten.view.default",      "aten.reshape.default",    "aten.expand.default", "aten.view_as.default",
    "aten.expand_as.default", "aten.reshape_as.default", "aten.alias.default"};

const Json* sizes_of(const Json* tensor) {
  if (!tensor || !tensor->is_object()) return nullptr;
  const auto sizes = tensor->find("sizes");
  return sizes != tensor->end() && sizes->is_array() ? &*sizes : nullptr;
}

bool is_number(const Json& size) {
  return size.is_object() && size.contains("as_int") && size["as_int"].is_number_integer();
}

// Two dynamic sizes are equal if their expressions are.
bool is_same(const Json& a, const Json& b) {
  if (is_number(a) || is_number(b)) return is_number(a) && is_number(b) && a["as_int"] == b["as_int"];
  const auto text_of = [](const Json& size) {
    const auto expression = size.is_object() ? size.find("as_expr") : size.end();
    if (expression == size.end() || !expression->is_object()) return std::string();
    const auto text = expression->find("expr_str");
    return text != expression->end() && text->is_string() ? text->get<std::string>() : std::string();
  };
  const std::string text = text_of(a);
  return !text.empty() && text == text_of(b);
}

bool have_same_shape(const Json* from, const Json* to) {
  return from && to && from->size() == to->size() && std::equal(from->begin(), from->end(), to->begin(), is_same);
}

bool is_constant(const Operand& operand) {
  return operand.kind == Operand::Kind::kConstant;
}

// True if x[first:last:step] is the whole dimension: by its bounds, or because a fixed length stays the same.
bool is_whole_slice(const Instruction& instruction, const Json* from, const Json* to) {
  constexpr std::size_t kDimension = 1, kFirst = 2, kEnd = 3, kStep = 4;
  const auto& operands = instruction.operands;
  if (operands.size() != 5 || !std::all_of(operands.begin() + kDimension, operands.end(), is_constant)) return false;
  const auto& step = operands[kStep].constant;
  if (!step.isInt() || step.toInt() != 1) return false;
  const auto& first = operands[kFirst].constant;
  const auto& end = operands[kEnd].constant;
  const bool from_begin = first.isNone() || (first.isInt() && first.toInt() == 0);
  const bool to_end = end.isNone() || (end.isInt() && end.toInt() == std::numeric_limits<std::int64_t>::max());
  if (from_begin && to_end) return true;
  if (!have_same_shape(from, to) || !operands[kDimension].constant.isInt()) return false;
  const std::int64_t dimension = operands[kDimension].constant.toInt();
  const auto count = static_cast<std::int64_t>(from->size());
  const std::int64_t place = dimension < 0 ? dimension + count : dimension;
  return place >= 0 && place < count && is_number((*from)[static_cast<std::size_t>(place)]);
}

}  // namespace

void LostBackward::add(const std::string& what, const CodeLine& line, const char* remedy) {
  found_.emplace(what + " " + quoted(line), remedy);
}

void LostBackward::see(const Json& node, bool without_gradients) {
  std::vector<CodeLine> lines = code_lines(node);
  if (says_function(node)) {
    const auto own = std::find_if(lines.begin(), lines.end(),
                                  [](const CodeLine& line) { return has(line.file, "/torch/_functorch/"); });
    if (own != lines.begin() && !lines.empty()) add("the function or hook of", *std::prev(own), kInOtherWords);
    return;
  }
  std::erase_if(lines, [](const CodeLine& line) { return line.function != "forward" || is_of_torch(line); });
  const std::vector<EnteredModule> modules = entered_modules(node);
  if (modules.empty()) return;
  if (const auto found = std::find_if(lines.begin(), lines.end(), is_of_checkpoint); found != lines.end()) {
    if (without_gradients && found != lines.begin()) add("torch.utils.checkpoint of", *std::prev(found), kNotReentrant);
    return;
  }
  const bool itself = views_itself(node);
  if (itself && (lines.empty() || !has(lines.back().text, "view_as"))) return see_returned_input(lines, modules);
  see_function(lines, modules, itself || is_flat(target_of(node)));
}

void LostBackward::see_function(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules,
                                bool is_no_module) {
  // super().forward(x) and self.block.forward(x) enter no module, either.
  std::size_t called_by_name = 0;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) called_by_name += has(lines[i].text, ".forward") ? 1 : 0;
  if (lines.size() <= modules.size() + called_by_name) return;
  for (std::size_t i = lines.size() - 1; i > 0; --i) {
    if (has(lines[i - 1].text, ".apply(")) return add("the autograd.Function of", lines[i - 1], kInOtherWords);
  }
  // Stacks leave out helper functions, which may call an autograd.Function or super().forward().
  if (is_of_known_module(lines.back())) return;
  for (std::size_t i = lines.size() - 1; i > 0; --i) {
    if (has(lines[i - 1].text, ".forward")) continue;
    if (is_no_module) return add("the autograd.Function that is called by", lines[i - 1], kCallTheModule);
    suspects_.insert(quoted(lines[i - 1]));
    return;
  }
}

void LostBackward::see_returned_input(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules) {
  if (lines.size() >= modules.size() && !lines.empty())
    return add("the autograd.Function of", lines.back(), kInOtherWords);
  // The module's hooks run before and after its forward().
  const std::string& path = modules.back().path;
  found_.emplace("the backward hook of " + (path.empty() ? "the model" : "the module '" + path + "'"), kRemoveHook);
}

std::optional<LostBackward::Problem> LostBackward::problem() const {
  if (found_.empty()) return std::nullopt;
  std::vector<std::string> shown;
  for (const auto& [what, remedy] : found_) {
    if (shown.size() < kMostShown) shown.push_back(what);
  }
  const std::size_t left = found_.size() - shown.size();
  return Problem{"lacks backward code of its author, for torch.export writes the forward pass alone: " +
                     join(shown, "; ") + (left > 0 ? "; and " + std::to_string(left) + " more" : ""),
                 found_.begin()->second};
}

bool is_whole_view(const Instruction& instruction, const Json* from, const Json* to) {
  if (instruction.target == "aten.slice.Tensor") return is_whole_slice(instruction, sizes_of(from), sizes_of(to));
  const bool reshapes = std::find(kReshaping.begin(), kReshaping.end(), instruction.target) != kReshaping.end();
  return reshapes && have_same_shape(sizes_of(from), sizes_of(to));
}

}  // namespace dtrain::exported
