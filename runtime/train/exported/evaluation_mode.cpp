#include "exported/evaluation_mode.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string_view>

#include <ATen/core/enum_tag.h>

#include "dtrain/base/text.h"

namespace dtrain::exported {

namespace {

// A function of torch.nn.functional that takes the mode as an argument, with the argument's position and default.
struct ModeFunction {
  std::string_view name;
  std::string_view argument;
  std::size_t place;
  bool is_on_by_default;
};
constexpr std::array kModeFunctions{ModeFunction{"dropout", "training", 2, true},
                                    ModeFunction{"dropout1d", "training", 2, true},
                                    ModeFunction{"dropout2d", "training", 2, true},
                                    ModeFunction{"dropout3d", "training", 2, true},
                                    ModeFunction{"alpha_dropout", "training", 2, false},
                                    ModeFunction{"feature_alpha_dropout", "training", 2, false},
                                    ModeFunction{"batch_norm", "training", 5, false},
                                    ModeFunction{"instance_norm", "use_input_stats", 5, true},
                                    ModeFunction{"rrelu", "training", 3, false},
                                    ModeFunction{"scaled_dot_product_attention", "dropout_p", 4, false}};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Returns the arguments of the call with its bracket at `open`; empty: the call has a string or ends in another line.
std::optional<std::vector<std::string_view>> arguments_at(std::string_view line, std::size_t open) {
  std::vector<std::string_view> arguments;
  std::size_t begin = open + 1;
  int depth = 1;
  for (std::size_t i = begin; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' || c == '\'') return std::nullopt;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth > 0 && !(depth == 1 && c == ',')) continue;
    if (const auto argument = trimmed(line.substr(begin, i - begin)); !argument.empty()) arguments.push_back(argument);
    begin = i + 1;
    if (depth == 0) return arguments;
  }
  return std::nullopt;
}

// Returns the value of the keyword argument, or of the positional argument with this number; empty: not given.
std::string_view argument_of(const std::vector<std::string_view>& arguments, std::string_view keyword,
                             std::size_t number) {
  std::size_t positional = 0;
  std::string_view found;
  for (const std::string_view argument : arguments) {
    const auto equals = argument.find('=');
    const bool named = equals != std::string_view::npos && equals > 0 && argument.substr(equals, 2) != "==" &&
                       std::all_of(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(equals),
                                   [](char c) { return is_word(c) || c == ' '; });
    if (named) {
      if (trimmed(argument.substr(0, equals)) == keyword) return trimmed(argument.substr(equals + 1));
    } else if (positional++ == number) {
      found = argument;
    }
  }
  return found;
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

// True for F.dropout(x, 0.2), F.dropout(x, 0.2, training=True), F.batch_norm(x, mean, var, training=True) and
// F.scaled_dot_product_attention(q, k, v, dropout_p=0.1). False for F.dropout(x, 0.2, self.training), and if the line
// has no such call, only a part of one, or calls with different modes.
bool is_on_in_both_modes(const std::string& line) {
  const std::string_view text = line;
  bool any = false;
  for (std::size_t open = text.find('('); open != std::string_view::npos; open = text.find('(', open + 1)) {
    std::size_t begin = open;
    while (begin > 0 && (is_word(text[begin - 1]) || text[begin - 1] == '.')) --begin;
    const std::string_view name = text.substr(begin, open - begin);
    const auto dot = name.rfind('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view from = name.substr(0, dot), function = name.substr(dot + 1);
    if (from != "F" && !from.ends_with("functional")) continue;
    const auto* found = std::find_if(kModeFunctions.begin(), kModeFunctions.end(),
                                     [&](const ModeFunction& known) { return known.name == function; });
    if (found == kModeFunctions.end()) continue;
    const auto arguments = arguments_at(text, open);
    if (!arguments) return false;
    const std::string_view value = argument_of(*arguments, found->argument, found->place);
    const bool on = value.empty() ? found->is_on_by_default : value == "True" || is_number(value);
    if (!on) return false;
    any = true;
  }
  return any;
}

using Kind = Instruction::Kind;

// An operator with an argument for training: a flag, or a probability, which is 0 in evaluation.
struct Modal {
  std::string_view name;
  std::string_view argument;
  bool is_probability = false;
};
constexpr std::array kModal{
    Modal{"batch_norm", "training"},
    Modal{"_batch_norm_impl_index", "training"},
    Modal{"native_batch_norm", "training"},
    Modal{"_native_batch_norm_legit", "training"},
    Modal{"_native_batch_norm_legit_functional", "training"},
    Modal{"cudnn_batch_norm", "training"},
    Modal{"miopen_batch_norm", "training"},
    Modal{"instance_norm", "use_input_stats"},
    Modal{"dropout", "train"},
    Modal{"dropout_", "train"},
    Modal{"native_dropout", "train"},
    Modal{"alpha_dropout", "train"},
    Modal{"alpha_dropout_", "train"},
    Modal{"feature_dropout", "train"},
    Modal{"feature_dropout_", "train"},
    Modal{"feature_alpha_dropout", "train"},
    Modal{"feature_alpha_dropout_", "train"},
    Modal{"rrelu", "training"},
    Modal{"rrelu_", "training"},
    Modal{"lstm", "train"},
    Modal{"gru", "train"},
    Modal{"rnn_tanh", "train"},
    Modal{"rnn_relu", "train"},
    Modal{"scaled_dot_product_attention", "dropout_p", true},
};

// The dropout layers of torch.nn; they have a train and an evaluation mode.
constexpr std::array<std::string_view, 6> kDropoutLayers{"Dropout",   "Dropout1d",    "Dropout2d",
                                                         "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"};

std::string_view plain_name(const Instruction& instruction) {
  std::string_view name = instruction.target;
  name.remove_prefix(std::min(name.size(), std::string_view("aten.").size()));
  return name.substr(0, name.rfind('.'));
}

const Modal* modal_of(const Instruction& instruction) {
  if (instruction.kind != Kind::kOperator) return nullptr;
  const auto* found = std::find_if(kModal.begin(), kModal.end(),
                                   [&](const Modal& modal) { return modal.name == plain_name(instruction); });
  return found == kModal.end() ? nullptr : found;
}

std::optional<std::size_t> index_of(const Instruction& instruction, std::string_view argument) {
  const auto index = instruction.op->schema().argumentIndexWithName(argument);
  return index ? std::optional(static_cast<std::size_t>(*index)) : std::nullopt;
}

// A norm without running statistics uses the batch's statistics in both modes.
bool has_running_statistics(const Instruction& instruction) {
  const auto index = index_of(instruction, "running_mean");
  if (!index) return true;
  const Operand& mean = instruction.operands[*index];
  return mean.kind != Operand::Kind::kConstant || !mean.constant.isNone();
}

// Stochastic depth of torchvision and timm drops the samples' branches with a random mask: x *
// mask.bernoulli_(p).div_(p).
bool is_stochastic_depth(const Instruction& instruction) {
  return instruction.module_class == "StochasticDepth" || instruction.module_class == "DropPath";
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

// Maps each value that is a stored tensor, or a view of one, to that tensor.
class Buffers {
 public:
  explicit Buffers(Program& program) : program_(program), of_value_(program.values, kNone) {
    for (std::size_t i = 0; i < program.stored.size(); ++i)
      of_value_[index(program.stored[i].value)] = static_cast<int>(i);
  }

  Stored* of(const Operand& operand) const {
    if (operand.kind != Operand::Kind::kValue) return nullptr;
    const int place = of_value_[index(operand.value)];
    return place == kNone ? nullptr : &program_.stored[static_cast<std::size_t>(place)];
  }

  // Maps the operator's results that are its operands, or views of them, to the operands' tensors.
  void follow(const Instruction& instruction) {
    const c10::FunctionSchema& schema = instruction.op->schema();
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (!alias || !of(instruction.operands[i])) continue;
      for (std::size_t k = 0; k < instruction.results.size(); ++k) {
        const auto* result = schema.returns()[k].alias_info();
        const Value value = instruction.results[k].value;
        if (result && value != kNoValue && result->beforeSets() == alias->beforeSets())
          of_value_[index(value)] = of_value_[index(instruction.operands[i].value)];
      }
    }
  }

 private:
  static constexpr int kNone = -1;
  Program& program_;
  std::vector<int> of_value_;
};

// Turns the operator's flag off in evaluation, unless its line of Python keeps it on in both modes.
void turn_flag_off(Instruction& instruction, const Modal& modal) {
  const auto index = index_of(instruction, modal.argument);
  if (!index || !has_running_statistics(instruction)) return;
  const Operand& flag = instruction.operands[*index];
  if (flag.kind != Operand::Kind::kConstant) return;
  const bool is_layer =
      std::find(kDropoutLayers.begin(), kDropoutLayers.end(), instruction.module_class) != kDropoutLayers.end();
  if (!is_layer && (modal.is_probability ? flag.constant.isDouble() && flag.constant.toDouble() != 0
                                         : flag.constant.isBool() && flag.constant.toBool())) {
    instruction.always_trains = is_on_in_both_modes(instruction.code);
    if (instruction.always_trains) return;
  }
  if (modal.is_probability) {
    if (flag.constant.isDouble() && flag.constant.toDouble() != 0)
      instruction.in_evaluation.emplace_back(*index, c10::IValue(0.0));
  } else if (!flag.constant.isBool() || flag.constant.toBool()) {
    instruction.in_evaluation.emplace_back(*index, c10::IValue(false));
  }
}

bool trains(const Instruction& instruction) {
  return !instruction.in_evaluation.empty();
}

// Attention without dropout tells nothing about the mode, and a norm without running statistics has no modes.
bool is_frozen(const Instruction& instruction) {
  const Modal* modal = modal_of(instruction);
  return modal && !modal->is_probability && !trains(instruction) && !instruction.always_trains &&
         has_running_statistics(instruction);
}

}  // namespace

void prepare_evaluation(Program& program) {
  Buffers buffers(program);
  std::vector<bool> is_mask(program.values, false);  // values that are masks of stochastic depth
  const auto makes_mask = [&](const Instruction& instruction) {
    for (const Result& result : instruction.results) {
      if (result.value != kNoValue) is_mask[index(result.value)] = true;
    }
  };
  const auto refuse = [&](std::string why) {
    if (program.why_no_evaluation.empty()) program.why_no_evaluation = std::move(why);
  };
  for (Instruction& instruction : program.instructions) {
    if (instruction.kind != Kind::kOperator) continue;
    if (const Modal* modal = modal_of(instruction)) turn_flag_off(instruction, *modal);
    const std::string_view name = plain_name(instruction);
    if (is_stochastic_depth(instruction) && name == "bernoulli_") {
      // In evaluation the mask is all ones: bernoulli_(1) without the division.
      if (const auto p = index_of(instruction, "p"); p && instruction.operands[*p].constant.isDouble()) {
        instruction.in_evaluation.emplace_back(*p, c10::IValue(1.0));
        makes_mask(instruction);
      }
    }
    const Operand* first = instruction.operands.empty() ? nullptr : &instruction.operands[0];
    if (name == "div_" && first && first->kind == Operand::Kind::kValue && is_mask[index(first->value)]) {
      instruction.skipped_in_evaluation = true;
    }
    const std::string where = instruction.module.empty() ? "" : " in " + instruction.module;
    if (!trains(instruction) && !modal_of(instruction) && !instruction.skipped_in_evaluation &&
        instruction.op->hasTag(at::Tag::nondeterministic_seeded)) {
      refuse("it draws random numbers (" + std::string(name) + where + ")");
    }
    const c10::FunctionSchema& schema = instruction.op->schema();
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      Stored* const stored = alias && alias->isWrite() ? buffers.of(instruction.operands[i]) : nullptr;
      if (!stored || name == "detach_") continue;
      stored->changed = true;
      const bool is_norm = instruction.module_class.find("Norm") != std::string::npos;
      if (i == 0 && is_norm && stored->name.ends_with("num_batches_tracked")) {
        instruction.skipped_in_evaluation = true;
      } else if (!modal_of(instruction)) {
        refuse("it changes its " + std::string(stored->kind == Stored::Kind::kParameter ? "parameter" : "buffer") +
               " '" + stored->name + "'");
      }
    }
    buffers.follow(instruction);
  }
  for (auto& update : program.buffer_updates) {
    update.skipped_in_evaluation = ends_with_any(update.name, {"running_mean", "running_var", "num_batches_tracked"});
    if (!update.skipped_in_evaluation) refuse("it changes its buffer '" + update.name + "'");
  }
}

std::vector<std::string> modal_operators(const Program& program) {
  std::vector<std::string> found;
  for (const Instruction& instruction : program.instructions) {
    const Modal* modal = modal_of(instruction);
    const bool switched = modal && !instruction.always_trains;
    if (switched && std::find(found.begin(), found.end(), modal->name) == found.end()) found.emplace_back(modal->name);
  }
  return found;
}

bool is_in_evaluation_mode(const Program& program) {
  const auto& all = program.instructions;
  return std::any_of(all.begin(), all.end(), is_frozen) &&
         std::none_of(all.begin(), all.end(), [](const Instruction& instruction) {
           return modal_of(instruction) && (trains(instruction) || instruction.always_trains);
         });
}

std::vector<std::string> modules_in_evaluation(const Program& program) {
  std::vector<std::string> found;
  if (is_in_evaluation_mode(program)) return found;
  for (const Instruction& instruction : program.instructions) {
    if (!is_frozen(instruction)) continue;
    std::string name = instruction.module.empty() ? std::string(plain_name(instruction))
                                                  : instruction.module + " (" + instruction.module_class + ")";
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(std::move(name));
  }
  return found;
}

}  // namespace dtrain::exported
