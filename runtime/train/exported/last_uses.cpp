#include "exported/last_uses.h"

#include <vector>

namespace dtrain::exported {

void mark_last_uses(Program& program) {
  std::vector<bool> used_later(program.values, false);
  const auto keep = [&](Value value) {
    if (value != kNoValue) used_later[static_cast<std::size_t>(value)] = true;
  };
  for (const Stored& stored : program.stored) keep(stored.value);
  for (const Output& output : program.outputs) keep(output.value);
  for (const auto& update : program.buffer_updates) keep(update.value);
  const auto drop_unused = [&](Value& value) {
    if (value != kNoValue && !used_later[static_cast<std::size_t>(value)]) value = kNoValue;
  };
  const auto use = [&](Operand& operand) {
    if (operand.value == kNoValue) return;
    operand.last_use = !used_later[static_cast<std::size_t>(operand.value)];
    keep(operand.value);
  };
  for (auto instruction = program.instructions.rbegin(); instruction != program.instructions.rend(); ++instruction) {
    for (Result& result : instruction->results) {
      drop_unused(result.value);
      for (Value& value : result.values) drop_unused(value);
    }
    for (auto operand = instruction->operands.rbegin(); operand != instruction->operands.rend(); ++operand) {
      use(*operand);
      for (auto item = operand->items.rbegin(); item != operand->items.rend(); ++item) use(*item);
    }
  }
}

}  // namespace dtrain::exported
