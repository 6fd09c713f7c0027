#include "worker/script_file.h"

#include <algorithm>
#include <array>
#include <memory>
#include <regex>
#include <sstream>
#include <string_view>
#include <utility>

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

#include "dtrain/base/text.h"

namespace dtrain::worker {
namespace {

// Returns the graph of forward() with those of its submodules.
std::shared_ptr<torch::jit::Graph> inlined_forward(const torch::jit::Module& script) {
  auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  return graph;
}

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

// A parameter that code reads, or None.
struct ReadParameter {
  std::string name;
  at::Tensor tensor;  // undefined for None
};

// Returns the parameter of the module `self` that the value is; empty: it is none.
std::optional<ReadParameter> parameter_of(const torch::jit::Value* value, const torch::jit::Value* self,
                                          torch::jit::Module module) {
  if (const auto constant = torch::jit::toIValue(value); constant && constant->isNone()) return ReadParameter{};
  std::vector<std::string> path;
  for (; value != self; value = value->node()->input()) {
    if (value->node()->kind() != c10::prim::GetAttr) return std::nullopt;
    path.insert(path.begin(), value->node()->s(c10::attr::name));
  }
  if (path.empty()) return std::nullopt;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) module = torch::jit::Module(module.attr(path[i]).toObject());
  const auto slot = module.type()->findAttributeSlot(path.back());
  if (!slot || !module.type()->is_parameter(*slot)) return std::nullopt;
  const auto held = module._ivalue()->getSlot(*slot);
  if (!held.isTensor()) return held.isNone() ? std::optional(ReadParameter{}) : std::nullopt;
  return ReadParameter{join(path, "."), held.toTensor()};
}

// True if nothing is computed from `node` on.
bool is_end(const torch::jit::Node* node, const torch::jit::Node* end) {
  for (; node != end; node = node->next()) {
    if (node->kind() != c10::prim::Constant && node->kind() != c10::prim::GetAttr &&
        node->kind() != c10::prim::TupleConstruct)
      return false;
  }
  return true;
}

// std::regex recurses once per character, so longer lines of the model's text are not matched.
constexpr std::size_t kLongestLine = 4096;

// One call of the traceback.
struct Frame {
  std::string source;    // the record of the archive: "code/__torch__/net.py"
  std::size_t line = 0;  // line of `source`, from 1
  std::string callee;    // "fc1" of the marked "(fc1).forward(x, )"; empty: a function or an operator
};

// Reads the traceback of the serialized code, which has one form for scripted and for traced models.
std::vector<Frame> frames_of(const std::string& message) {
  static const std::regex file_line(R"re(^  File "(code/[^"]+)", line (\d+), in .*)re");
  static const std::regex call(R"re(^\(?(\w+)\)\.\w+.*)re");
  std::vector<Frame> frames;
  std::string code;
  for (const std::string& line : split(message, '\n')) {
    std::smatch match;
    if (line.starts_with("Traceback of TorchScript, original code")) break;
    if (line.size() <= kLongestLine && std::regex_match(line, match, file_line)) {
      frames.push_back({match[1], static_cast<std::size_t>(std::stoul(match[2])), {}});
    } else if (const auto mark = line.find('~'); !frames.empty() && line.ends_with("<--- HERE") && mark < code.size()) {
      const std::string marked = code.substr(mark, kLongestLine);
      if (std::regex_match(marked, match, call)) frames.back().callee = match[1];
    }
    code = line;
  }
  return frames;
}

// Returns the attributes, from the module on, to which a local variable of the code refers: after `x = self.body`, `y =
// x.fc` the variable y is {body, fc}. Empty for the module itself.
std::vector<std::string> attributes_of(const std::vector<std::string>& source, std::size_t line, std::string variable) {
  std::vector<std::string> path;
  const std::regex plain(R"re(^\s+(\w+) = (\w+)\.(\w+)$)re");
  const std::regex quoted(R"re(^\s+(\w+) = getattr\((\w+), "([^"]+)"\)$)re");
  for (std::size_t i = std::min(line, source.size()); i-- > 0 && !source[i].starts_with("  def ");) {
    std::smatch match;
    if ((std::regex_match(source[i], match, plain) || std::regex_match(source[i], match, quoted)) &&
        match[1] == variable) {
      path.insert(path.begin(), match[3]);
      variable = match[2];
    }
  }
  return path;
}

std::optional<torch::jit::Module> child(const torch::jit::Module& module, const std::string& name) {
  for (const auto& item : module.named_children()) {
    if (item.name == name) return item.value;
  }
  return std::nullopt;
}

std::string with_parameters(const std::string& path, const torch::jit::Module& module) {
  std::ostringstream text;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    text << (text.tellp() > 0 ? ", " : "") << path << (path.empty() ? "" : ".") << item.name << " "
         << item.value.sizes();
  }
  const std::string parameters = text.str();
  if (path.empty()) return parameters;
  return parameters.empty() ? path : path + " (" + parameters + ")";
}

}  // namespace

std::vector<std::string> always_training(const torch::jit::Module& script) {
  const auto graph = inlined_forward(script);
  std::vector<std::string> found;
  find_fixed_modes(*graph->block(), found);
  return found;
}

std::optional<std::string> changed_attribute(const torch::jit::Module& script) {
  const auto graph = inlined_forward(script);
  return find_change(*graph->block());
}

ShortScript without_last_layer(const torch::jit::Module& script, std::optional<std::size_t> element) {
  const auto because = [](const std::string& why_not) { return ShortScript{{}, nullptr, why_not}; };
  const auto& whole = script.get_method("forward").function();
  const auto graph = inlined_forward(script);
  torch::jit::Value* scores = graph->outputs().at(0);
  if (element) {
    if (scores->node()->kind() != c10::prim::TupleConstruct || scores->uses().size() != 1)
      return because("its forward() does not build the tuple at its end");
    scores = scores->node()->inputs().at(*element);
  }
  torch::jit::Node* const linear = scores->node();
  if (linear->kind() != c10::aten::linear || linear->owningBlock() != graph->block())
    return because("its scores are the result of " + std::string(linear->kind().toQualString()) +
                   ", not of a linear layer");
  if (scores->uses().size() != 1) return because("it uses its scores itself");
  if (!is_end(linear->next(), graph->return_node())) return because("it goes on computing after its last layer");
  const auto weight = parameter_of(linear->input(1), graph->inputs().at(0), script);
  if (!weight || !weight->tensor.defined()) return because("the weight of its last layer is no parameter");
  const auto bias = parameter_of(linear->input(2), graph->inputs().at(0), script);
  if (!bias) return because("the bias of its last layer is no parameter");
  scores->replaceAllUsesWith(linear->input(0));
  linear->destroy();
  auto forward = std::make_shared<torch::jit::GraphFunction>(whole.qualname(), graph, nullptr);
  forward->setSchema(whole.getSchema());
  return {{weight->name, weight->tensor, bias->tensor}, std::move(forward), ""};
}

std::string torch_cause(const std::string& message) {
  // The last traceback is followed by "RuntimeError: MESSAGE", or by the class that the model's code raised.
  static const std::regex raised(R"re(^[A-Za-z_][\w.]*: (.+)$)re");
  const auto last_mark = message.rfind("<--- HERE");
  if (last_mark != std::string::npos) {
    for (const std::string& line : split(message.substr(last_mark), '\n')) {
      std::smatch match;
      const std::string start = line.substr(0, kLongestLine);
      if (std::regex_match(start, match, raised)) return match[1];
    }
  }
  return split(message, '\n').front();
}

std::string failed_submodule(const std::string& message, const torch::jit::Module& script,
                             const std::filesystem::path& file) {
  try {
    caffe2::serialize::PyTorchStreamReader reader(file.string());
    torch::jit::Module module = script;
    std::string path;
    for (const Frame& frame : frames_of(message)) {
      if (frame.callee.empty()) continue;
      const auto [data, size] = reader.getRecord(frame.source);
      const auto source = split({static_cast<const char*>(data.get()), size}, '\n');
      for (const std::string& name : attributes_of(source, frame.line, frame.callee)) {
        const auto next = child(module, name);
        if (!next) return with_parameters(path, module);
        module = *next;
        path += (path.empty() ? "" : ".") + name;
      }
    }
    return with_parameters(path, module);
  } catch (const std::exception&) {
    return {};  // the file has changed since loading; the message goes without the submodule
  }
}

}  // namespace dtrain::worker
