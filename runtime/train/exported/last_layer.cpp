#include <algorithm>

#include "exported/runner.h"

namespace dtrain::exported {
namespace {

using Kind = Instruction::Kind;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

std::size_t maker_of(const Program& program, Value value) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (const Result& result : program.instructions[i].results) {
      if (result.value == value || std::find(result.values.begin(), result.values.end(), value) != result.values.end())
        return i;
    }
  }
  return kNone;
}

// The uses of a value: by instructions, as an output, as the new value of a buffer.
std::size_t uses_of(const Program& program, Value value) {
  std::size_t uses = 0;
  for (const Instruction& instruction : program.instructions) {
    for_each_operand(instruction, [&](const Operand& operand) { uses += operand.value == value ? 1 : 0; });
  }
  for (const Output& output : program.outputs) uses += output.value == value ? 1 : 0;
  for (const auto& update : program.buffer_updates) uses += update.value == value ? 1 : 0;
  return uses;
}

bool is_in_region(const Program& program, std::size_t instruction) {
  int open = 0;
  for (std::size_t i = 0; i < instruction; ++i) {
    const Kind kind = program.instructions[i].kind;
    if (kind == Kind::kSetGrad || kind == Kind::kAutocast) ++open;
    if (kind == Kind::kEndRegion) --open;
  }
  return open > 0;
}

// True if the input of the layer is as it was when all later instructions have run.
bool stays(const Program& program, std::size_t layer, Value input) {
  for (std::size_t i = layer + 1; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    bool is_taken = false;
    for_each_operand(instruction,
                     [&](const Operand& operand) { is_taken |= operand.value == input && operand.last_use; });
    if (is_taken || (instruction.kind == Kind::kOperator && instruction.op->schema().is_mutable())) return false;
  }
  return true;
}

const Stored* parameter_of(const Program& program, const Operand& operand) {
  for (const Stored& stored : program.stored) {
    const bool is_it = operand.kind == Operand::Kind::kValue && stored.value == operand.value;
    if (is_it && stored.kind == Stored::Kind::kParameter) return &stored;
  }
  return nullptr;
}

}  // namespace

std::variant<LastLayer, std::string> last_layer(const Program& program, std::size_t output) {
  const Value scores = program.outputs[output].value;
  const std::size_t maker = maker_of(program, scores);
  if (maker == kNone) return "its output is one of its inputs";
  const Instruction& linear = program.instructions[maker];
  if (linear.target != "aten.linear.default") {
    return "its scores are the result of " + linear.target + ", not of a linear layer";
  }
  if (uses_of(program, scores) != 1) return "it uses its scores itself";
  if (is_in_region(program, maker)) return "it computes its last layer in a region of autocast or without gradients";
  const Operand& input = linear.operands[0];
  LastLayer layer{output, maker, input.value, parameter_of(program, linear.operands[1]), nullptr};
  if (!layer.weight) return "the weight of its last layer is no parameter";
  if (const Operand& bias = linear.operands[2]; bias.kind != Operand::Kind::kConstant) {
    layer.bias = parameter_of(program, bias);
    if (!layer.bias) return "the bias of its last layer is no parameter";
  }
  if (input.kind != Operand::Kind::kValue || !stays(program, maker, input.value)) {
    return "operations after its last layer use or change that layer's input";
  }
  return layer;
}

}  // namespace dtrain::exported
