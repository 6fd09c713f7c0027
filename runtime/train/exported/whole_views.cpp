#include "exported/whole_views.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace dtrain::exported {

namespace {

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

bool is_whole_view(const Instruction& instruction, const Json* from, const Json* to) {
  if (instruction.target == "aten.slice.Tensor") return is_whole_slice(instruction, sizes_of(from), sizes_of(to));
  const bool reshapes = std::find(kReshaping.begin(), kReshaping.end(), instruction.target) != kReshaping.end();
  return reshapes && have_same_shape(sizes_of(from), sizes_of(to));
}

}  // namespace dtrain::exported
