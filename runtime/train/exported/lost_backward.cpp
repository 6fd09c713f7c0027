#include "exported/lost_backward.h"

#include <algorithm>
#include <array>
#include <iterator>
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

std::optional<LostBackward::Finding> LostBackward::finding() const {
  if (found_.empty()) return std::nullopt;
  std::vector<std::string> shown;
  for (const auto& [what, remedy] : found_) {
    if (shown.size() < kMostShown) shown.push_back(what);
  }
  const std::size_t left = found_.size() - shown.size();
  return Finding{"lacks backward code of its author, for torch.export writes the forward pass alone: " +
                     join(shown, "; ") + (left > 0 ? "; and " + std::to_string(left) + " more" : ""),
                 found_.begin()->second};
}

}  // namespace dtrain::exported
