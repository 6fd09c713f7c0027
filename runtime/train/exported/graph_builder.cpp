#include "exported/graph_builder.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#include "dtrain/base/error.h"

namespace dtrain::exported {
namespace {

using Kind = Instruction::Kind;

constexpr int kDeepestGraph = 16;
constexpr const char* kOperatorPrefix = "torch.ops.";

// These operators compare tensors with those of the export. They are left out, because mixed precision changes types,
// the device may differ, and ShapeCheck checks sizes.
constexpr std::array kAssertions{"aten._assert_tensor_metadata.default",
                                 "aten.sym_constrain_range.default",
                                 "aten.sym_constrain_range_for_size.default",
                                 "aten._assert_async.msg",
                                 "aten._assert_async.default",
                                 "aten._functional_assert_async.msg"};

// Operators that read or write files.
constexpr std::array kForbidden{"aten::from_file"};

template <typename List>
bool contains(const List& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string text_of(const Json& node, const char* key) {
  const auto found = node.is_object() ? node.find(key) : node.end();
  if (found == node.end() || !found->is_string()) throw Error(std::string("a node without its ") + key);
  return found->get<std::string>();
}

const Json& list_of(const Json& node, const char* key) {
  const auto found = node.is_object() ? node.find(key) : node.end();
  if (found == node.end() || !found->is_array()) throw Error(std::string("a node without its ") + key);
  return *found;
}

// Returns the path and the class name of the node's module: "layer1.0.conv1" and "Conv2d".
std::pair<std::string, std::string> module_of(const Json& node) {
  const std::vector<EnteredModule> modules = entered_modules(node);
  if (modules.empty()) return {};
  const std::string& name = modules.back().class_name;
  return {modules.back().path, name.substr(name.rfind('.') + 1)};
}

std::string code_of(const Json& node) {
  std::vector<CodeLine> lines = code_lines(node);
  return lines.empty() ? std::string() : std::move(lines.back().text);
}

const char* instead_of(const std::string& higher_order) {
  if (higher_order == "cond")
    return "torch.cond() is not supported: compute both branches and choose with torch.where()";
  if (higher_order == "tag_activation_checkpoint") {
    return "export the model without torch.utils.checkpoint, and name the modules in "
           "optimizations.gradient_checkpointing of the experiment";
  }
  return "write this part of the model without it, or train it with a program (docs/api.md)";
}

}  // namespace

Value GraphBuilder::define(const std::string& name) {
  const auto value = static_cast<Value>(program_.values);
  give_name(name, value);
  ++program_.values;
  return value;
}

void GraphBuilder::give_name(const std::string& name, Value value) {
  if (!names_.emplace(name, value).second) throw Error("two values are named '" + name + "'");
}

Value GraphBuilder::find(const std::string& name) const {
  const auto found = names_.find(name);
  if (found != names_.end()) return found->second;
  throw Error("uses the value '" + name + "' before it is computed");
}

Operand GraphBuilder::operand(const Json& argument) const {
  return operand_of(argument, nullptr, *this);
}

void GraphBuilder::refuse(const std::string& what, const std::string& remedy) {
  unsupported_.emplace(what + (module_.empty() ? "" : " (in " + module_ + ")"), remedy);
}

void GraphBuilder::add_nodes(const Json& graph) {
  const Json& nodes = graph.at("nodes");
  if (!nodes.is_array()) throw Error("a graph has no list of nodes");
  const auto shapes = graph.find("tensor_values");
  const Json* const outside = std::exchange(shapes_, shapes == graph.end() ? nullptr : &*shapes);
  for (const Json& node : nodes) add_node(node);
  shapes_ = outside;
}

Instruction GraphBuilder::begin_instruction(const Json& node) {
  Instruction instruction;
  instruction.target = text_of(node, "target");
  std::tie(instruction.module, instruction.module_class) = module_of(node);
  module_ = instruction.module;
  if (!instruction.module_class.empty()) program_.classes.emplace(instruction.module, instruction.module_class);
  instruction.code = code_of(node);
  lost_backward_.see(node, without_gradients_ > 0);
  return instruction;
}

void GraphBuilder::add_node(const Json& node) {
  Instruction instruction = begin_instruction(node);
  std::string& target = instruction.target;
  try {
    if (number_operator(target)) return add_number(node, std::move(instruction));
    if (!target.starts_with(kOperatorPrefix)) {
      refuse("'" + target + "'", "write the model's forward() with operators of torch alone");
      return add_results(list_of(node, "outputs"), instruction);
    }
    target.erase(0, std::string_view(kOperatorPrefix).size());
    if (target == "higher_order.wrap_with_set_grad_enabled") {
      instruction.kind = Kind::kSetGrad;
      instruction.operands.push_back(operand(argument_of(node, 0)));
      return add_region(node, std::move(instruction), 1);
    }
    if (target == "higher_order.wrap_with_autocast") {
      instruction.kind = Kind::kAutocast;
      for (std::size_t i = 0; i < 3; ++i) instruction.operands.push_back(operand(argument_of(node, i)));
      return add_region(node, std::move(instruction), 4);
    }
    if (target.starts_with("higher_order.")) {
      refuse("higher-order operator " + target.substr(13), instead_of(target.substr(13)));
      return add_results(list_of(node, "outputs"), instruction);
    }
    if (contains(kAssertions, target)) return;
    add_operator(node, std::move(instruction));
  } catch (const Json::exception&) {
    throw Error("its node '" + target + "' is damaged");
  }
}

const Json& GraphBuilder::argument_of(const Json& node, std::size_t index) const {
  const Json& inputs = list_of(node, "inputs");
  if (index >= inputs.size() || !inputs[index].is_object() || !inputs[index].contains("arg"))
    throw Error("its node '" + text_of(node, "target") + "' lacks an argument");
  return inputs[index]["arg"];
}

void GraphBuilder::add_number(const Json& node, Instruction instruction) {
  instruction.kind = Kind::kNumber;
  const NamedNumberOperator& known = *number_operator(instruction.target);
  instruction.number = known.compute;
  const std::size_t count = list_of(node, "inputs").size();
  if (count != known.operands)
    throw Error("its node '" + instruction.target + "' has " + std::to_string(count) + " arguments");
  for (std::size_t i = 0; i < count; ++i) {
    Operand number = operand(argument_of(node, i));
    const c10::IValue& value = number.constant;
    if (number.kind == Operand::Kind::kConstant && !value.isInt() && !value.isDouble() && !value.isBool())
      throw Error("its node '" + instruction.target + "' has an argument that is no number");
    instruction.operands.push_back(std::move(number));
  }
  add_results(list_of(node, "outputs"), instruction);
  program_.instructions.push_back(std::move(instruction));
}

void GraphBuilder::add_operator(const Json& node, Instruction instruction) {
  const std::string& target = instruction.target;
  const auto first = target.find('.'), last = target.rfind('.');
  if (first == std::string::npos || first == last) throw Error("its node '" + target + "' names no operator");
  const std::string overload = target.substr(last + 1);
  const std::string name = target.substr(0, first) + "::" + target.substr(first + 1, last - first - 1);
  const auto define_results = [&] { add_results(list_of(node, "outputs"), instruction); };
  if (target == "aten._assert_scalar.default") {
    instruction.kind = Kind::kAssert;
    instruction.operands = {operand(argument_of(node, 0)), operand(argument_of(node, 1))};
    program_.instructions.push_back(std::move(instruction));
    return;
  }
  if (target == "aten.sym_size.int") {
    instruction.kind = Kind::kSize;
    instruction.operands = {operand(argument_of(node, 0)), operand(argument_of(node, 1))};
    if (!instruction.operands[1].constant.isInt()) throw Error("its node '" + target + "' has no dimension");
    define_results();
    program_.instructions.push_back(std::move(instruction));
    return;
  }
  if (!name.starts_with("aten::") || contains(kForbidden, name)) {
    refuse("operator " + name, name.starts_with("aten::")
                                   ? "write this part of the model without it"
                                   : "it is no operator of PyTorch itself: write this part of the model with operators "
                                     "of torch, or train the model with a program (docs/api.md)");
    return define_results();
  }
  instruction.op = c10::Dispatcher::singleton().findSchema({name, overload == "default" ? std::string() : overload});
  if (!instruction.op) {
    refuse("operator " + name + (overload == "default" ? "" : "." + overload),
           "this libtorch does not know it: export the model with PyTorch " TORCH_VERSION);
    return define_results();
  }
  const c10::FunctionSchema& schema = instruction.op->schema();
  const Json& inputs = list_of(node, "inputs");
  std::map<std::string, const Json*> given;
  for (std::size_t i = 0; i < inputs.size(); ++i) given.emplace(text_of(inputs[i], "name"), &argument_of(node, i));
  try {
    for (const c10::Argument& argument : schema.arguments()) {
      const auto found = given.find(argument.name());
      if (found == given.end()) {
        instruction.operands.push_back(default_operand(argument));
        continue;
      }
      const Json& json = *found->second;
      Operand operand = operand_of(json, argument.type(), *this);
      // An export on a CPU writes false, which would turn cuDNN off on a GPU.
      if (argument.name() == "cudnn_enabled" && operand.constant.isBool()) operand.constant = true;
      // One number stands for all elements of a list of fixed length: max_pool2d(x, 2).
      if (json.contains("as_int") && argument.N().value_or(0) > 1 && operand.constant.isIntList()) {
        operand.constant = c10::List<std::int64_t>(
            std::vector<std::int64_t>(static_cast<std::size_t>(*argument.N()), operand.constant.toIntVector().at(0)));
      }
      instruction.operands.push_back(std::move(operand));
      given.erase(found);
    }
    if (!given.empty()) throw Error("has no argument '" + given.begin()->first + "' in this libtorch");
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.starts_with("uses the value")) throw Error("its node '" + target + "' " + what);
    refuse("operator " + name + ", which " + what, "export the model with PyTorch " TORCH_VERSION);
    return define_results();
  }
  if (list_of(node, "outputs").size() > schema.returns().size())
    throw Error("its node '" + target + "' has more results than the operator returns");
  if (const std::string view = name_of_whole_view(instruction, node); !view.empty()) {
    return give_name(view, instruction.operands[0].value);
  }
  define_results();
  program_.instructions.push_back(std::move(instruction));
}

// In a region without gradients views stay: they cost no backward step, and autograd treats them differently.
std::string GraphBuilder::name_of_whole_view(const Instruction& instruction, const Json& node) const {
  const Json &inputs = list_of(node, "inputs"), &outputs = list_of(node, "outputs");
  if (without_gradients_ > 0 || inputs.empty() || outputs.size() != 1) return {};
  if (instruction.operands.empty() || instruction.operands[0].kind != Operand::Kind::kValue) return {};
  const auto name_of = [](const Json& argument) {
    const auto tensor = argument.is_object() ? argument.find("as_tensor") : argument.end();
    return tensor == argument.end() ? std::string() : text_of(*tensor, "name");
  };
  const auto meta_of = [&](const std::string& name) -> const Json* {
    if (!shapes_ || !shapes_->is_object()) return nullptr;
    const auto found = shapes_->find(name);
    return found == shapes_->end() ? nullptr : &*found;
  };
  const std::string from = name_of(argument_of(node, 0)), to = name_of(outputs[0]);
  return is_whole_view(instruction, meta_of(from), meta_of(to)) ? to : std::string();
}

void GraphBuilder::add_results(const Json& outputs, Instruction& instruction) {
  for (const Json& output : outputs) {
    if (!output.is_object() || output.size() != 1) throw Error("its node '" + instruction.target + "' has no results");
    const std::string& tag = output.begin().key();
    const Json& value = output.begin().value();
    Result result;
    if (tag == "as_tensor") {
      result.value = define(value.at("name").get<std::string>());
    } else if (tag == "as_sym_int" || tag == "as_sym_float" || tag == "as_sym_bool") {
      result.value = define(value.at("as_name").get<std::string>());
    } else if (tag == "as_tensors" || tag == "as_optional_tensors") {
      result.is_list = true;
      for (const Json& element : value) {
        const Json& tensor = element.contains("as_tensor") ? element["as_tensor"] : element;
        result.values.push_back(tensor.contains("name") ? define(tensor["name"].get<std::string>()) : kNoValue);
      }
    } else if (tag == "as_optional_tensor") {
      if (value.contains("as_tensor")) result.value = define(value["as_tensor"].at("name").get<std::string>());
    } else if (tag != "as_none") {
      refuse("a result of kind " + tag.substr(tag.starts_with("as_") ? 3 : 0) + " of " + instruction.target,
             "write this part of the model without it");
    }
    instruction.results.push_back(std::move(result));
  }
}

// The node becomes an instruction that begins the region, the instructions of its graph, and one that ends it.
void GraphBuilder::add_region(const Json& node, Instruction begin, std::size_t arguments_before_graph) {
  for (const Operand& operand : begin.operands) {
    if (operand.kind != Operand::Kind::kConstant) throw Error("its node '" + begin.target + "' is damaged");
  }
  const c10::IValue& on = begin.operands.back().constant;
  const bool well_formed = begin.kind == Kind::kSetGrad
                               ? on.isBool()
                               : on.isBool() && begin.operands[0].constant.isString() &&
                                     (begin.operands[1].constant.isInt() || begin.operands[1].constant.isNone());
  if (!well_formed) throw Error("its node '" + begin.target + "' is damaged");
  const Json& graph = argument_of(node, arguments_before_graph);
  if (!graph.contains("as_graph")) throw Error("its node '" + begin.target + "' has no graph");
  std::vector<Operand> arguments;
  const std::size_t count = list_of(node, "inputs").size();
  for (std::size_t i = arguments_before_graph + 1; i < count; ++i) arguments.push_back(operand(argument_of(node, i)));
  Instruction end = begin;
  end.kind = Kind::kEndRegion;
  end.operands.clear();
  // torch.autocast("cuda") around operators on the CPU has no effect.
  const bool in_effect = begin.kind == Kind::kSetGrad || begin.operands[0].constant.toStringRef() == device_type_;
  const bool without_gradients = begin.kind == Kind::kSetGrad && !on.toBool();
  if (in_effect) program_.instructions.push_back(std::move(begin));
  without_gradients_ += without_gradients ? 1 : 0;
  add_graph(graph["as_graph"].at("graph"), arguments, list_of(node, "outputs"));
  without_gradients_ -= without_gradients ? 1 : 0;
  if (in_effect) program_.instructions.push_back(std::move(end));
}

void GraphBuilder::add_graph(const Json& graph, const std::vector<Operand>& arguments, const Json& outputs) {
  if (++depth_ > kDeepestGraph) throw Error("its graphs are nested too deeply");
  Names outside;
  names_.swap(outside);  // each graph has a separate set of names
  const Json& inputs = list_of(graph, "inputs");
  if (inputs.size() != arguments.size()) throw Error("a graph in it has other inputs than its node gives it");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (arguments[i].kind != Operand::Kind::kValue) continue;  // the graph's nodes contain constants
    if (!inputs[i].is_object() || inputs[i].size() != 1) throw Error("a graph in it has damaged inputs");
    const Json& input = inputs[i].begin().value();  // the same value under another name
    const char* key = input.is_object() && input.contains("name") ? "name" : "as_name";
    if (!names_.emplace(text_of(input, key), arguments[i].value).second) throw Error("two inputs have one name");
  }
  add_nodes(graph);
  std::vector<Operand> results;
  for (const Json& output : list_of(graph, "outputs")) results.push_back(operand(output));
  names_.swap(outside);
  --depth_;
  std::vector<std::string> names;
  for (const Json& output : outputs) {
    if (!output.is_object() || output.size() != 1) throw Error("a graph in it has damaged results");
    const Json& value = output.begin().value();
    if (output.begin().key() == "as_tensors" && value.is_array()) {
      for (const Json& element : value) names.push_back(text_of(element, "name"));
    } else {
      names.push_back(text_of(value, output.begin().key() == "as_tensor" ? "name" : "as_name"));
    }
  }
  if (names.size() != results.size()) throw Error("a graph in it returns other values than its node");
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (results[i].kind == Operand::Kind::kValue) {
      give_name(names[i], results[i].value);
      continue;
    }
    Instruction copy;
    copy.kind = Kind::kCopy;
    copy.target = "a graph's result";
    copy.operands.push_back(std::move(results[i]));
    copy.results.emplace_back();
    copy.results.back().value = define(names[i]);
    program_.instructions.push_back(std::move(copy));
  }
}

}  // namespace dtrain::exported
