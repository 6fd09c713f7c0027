// Turns an argument of the file into an operand of the type in the operator's schema.
#include <array>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>

#include "dtrain/base/error.h"
#include "exported/graph_builder.h"
#include "exported/weights.h"

namespace dtrain::exported {
namespace {

using c10::TypeKind;
using OperandKind = Operand::Kind;

TypeKind kind_of(const c10::TypePtr& type) {
  return type ? type->kind() : TypeKind::AnyType;
}

c10::TypePtr plain(const c10::TypePtr& type) {
  return kind_of(type) == TypeKind::OptionalType ? type->expectRef<c10::OptionalType>().getElementType() : type;
}

c10::TypePtr element_type(const c10::TypePtr& type) {
  return kind_of(type) == TypeKind::ListType ? type->expectRef<c10::ListType>().getElementType() : nullptr;
}

Operand constant(c10::IValue value) {
  Operand operand;
  operand.constant = std::move(value);
  return operand;
}

// JSON has no numbers for infinities and NaN.
double float_of(const Json& value) {
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return value.get<double>();
}

[[noreturn]] void mismatch(const std::string& tag, const c10::TypePtr& type) {
  throw Error("has an argument of kind " + tag + " where it takes " + (type ? type->str() : "something else"));
}

c10::IValue number(const c10::IValue& value, const c10::TypePtr& type, const std::string& tag) {
  switch (kind_of(type)) {
    case TypeKind::AnyType:
    case TypeKind::NumberType:
    case TypeKind::SymIntType:
      return value;
    case TypeKind::TensorType:
      return at::native::wrapped_scalar_tensor(value.toScalar());
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return value.isBool() ? c10::IValue(value.toBool() ? 1.0 : 0.0) : c10::IValue(value.toScalar().toDouble());
    case TypeKind::IntType:
      if (value.isBool()) return static_cast<std::int64_t>(value.toBool());
      if (value.isInt()) return value;
      mismatch(tag, type);
    case TypeKind::BoolType:
      if (value.isBool()) return value;
      if (value.isInt()) return value.toInt() != 0;
      mismatch(tag, type);
    default:
      mismatch(tag, type);
  }
}

// One number in place of a list stands for each of the list's elements, as in max_pool2d(x, 2).
Operand number_operand(const c10::IValue& value, const c10::TypePtr& type, const std::string& tag) {
  const auto element = element_type(type);
  if (!element) return constant(number(value, type, tag));
  const c10::IValue converted = number(value, element, tag);
  if (converted.isInt()) return constant(c10::List<std::int64_t>({converted.toInt()}));
  if (converted.isDouble()) return constant(c10::List<double>({converted.toDouble()}));
  mismatch(tag, type);
}

Operand value_operand(Value value) {
  Operand operand;
  operand.kind = OperandKind::kValue;
  operand.value = value;
  return operand;
}

// An operand for a number that the program computes, such as a size of a batch.
Operand computed_number(const std::string& name, const c10::TypePtr& type, const GraphBuilder& builder) {
  Operand operand = value_operand(builder.find(name));
  if (kind_of(type) == TypeKind::TensorType) operand.kind = OperandKind::kWrappedNumber;
  if (kind_of(type) == TypeKind::FloatType || kind_of(type) == TypeKind::SymFloatType)
    operand.kind = OperandKind::kFloat;
  if (const auto element = element_type(type)) {
    Operand list;
    list.kind = OperandKind::kInts;
    list.items.push_back(std::move(operand));
    return list;
  }
  return operand;
}

// An operand for a SymInt, SymFloat or SymBool, which is {"as_name": …} or a number.
Operand symbolic(const Json& value, const c10::TypePtr& type, const std::string& tag, const GraphBuilder& builder) {
  if (value.contains("as_name")) return computed_number(value["as_name"].get<std::string>(), type, builder);
  if (value.contains("as_int")) return number_operand(value["as_int"].get<std::int64_t>(), type, tag);
  if (value.contains("as_float")) return number_operand(float_of(value["as_float"]), type, tag);
  return number_operand(value.at("as_bool").get<bool>(), type, tag);
}

Operand tensor_operand(const Json& value, const c10::TypePtr& type, const GraphBuilder& builder) {
  Operand operand = value_operand(builder.find(value.at("name").get<std::string>()));
  const auto element = element_type(type);
  if (!element) return operand;
  Operand list;
  list.kind = kind_of(element) == TypeKind::OptionalType ? OperandKind::kOptionalTensors : OperandKind::kTensors;
  list.items.push_back(std::move(operand));
  return list;
}

Operand list_of_tensors(const Json& values, const c10::TypePtr& type, const GraphBuilder& builder) {
  const auto element = element_type(type);
  Operand list;
  list.kind =
      element && kind_of(element) == TypeKind::OptionalType ? OperandKind::kOptionalTensors : OperandKind::kTensors;
  for (const Json& value : values) {
    const Json& tensor = value.contains("as_tensor") ? value["as_tensor"] : value;
    if (tensor.contains("name")) {
      list.items.push_back(value_operand(builder.find(tensor["name"].get<std::string>())));
    } else if (list.kind == OperandKind::kOptionalTensors) {
      list.items.emplace_back();  // None
    } else {
      throw Error("has no tensor where it takes one");
    }
  }
  return list;
}

Operand list_of_numbers(const Json& values, const c10::TypePtr& type, const std::string& tag,
                        const GraphBuilder& builder) {
  const auto element = element_type(type);
  if (type && !element && kind_of(type) != TypeKind::AnyType) mismatch(tag, type);
  const bool floats = element ? kind_of(element) == TypeKind::FloatType || kind_of(element) == TypeKind::SymFloatType
                              : tag == "as_floats";
  c10::List<std::int64_t> ints;
  c10::List<double> doubles;
  Operand list;
  list.kind = floats ? OperandKind::kFloats : OperandKind::kInts;
  bool computed = false;
  for (const Json& value : values) {
    Operand item;
    if (value.is_object()) {
      item = symbolic(value, element, tag, builder);
    } else {
      item = constant(floats ? c10::IValue(float_of(value)) : c10::IValue(value.get<std::int64_t>()));
    }
    computed |= item.kind != OperandKind::kConstant;
    if (item.kind == OperandKind::kConstant && floats) doubles.push_back(item.constant.toDouble());
    if (item.kind == OperandKind::kConstant && !floats) ints.push_back(item.constant.toInt());
    list.items.push_back(std::move(item));
  }
  if (computed) return list;
  return constant(floats ? c10::IValue(doubles) : c10::IValue(ints));
}

constexpr std::array kLayouts{at::kSparse,    at::kSparseCsr, at::kSparseCsc, at::kSparseBsr,
                              at::kSparseBsc, at::kMkldnn,    at::kStrided};
constexpr std::array kMemoryFormats{at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast,
                                    at::MemoryFormat::ChannelsLast3d, at::MemoryFormat::Preserve};

// Returns the entry of a table that torch.export's number names, as the integer that operators take.
template <typename Table>
Operand numbered(const Table& table, const Json& value, const char* what) {
  const auto number = value.get<std::int64_t>();
  if (number < 1 || number > static_cast<std::int64_t>(table.size()))
    throw Error(std::string("has an unknown ") + what + ", number " + std::to_string(number));
  return constant(static_cast<std::int64_t>(table[static_cast<std::size_t>(number - 1)]));
}

Operand device_operand() {
  Operand operand = constant(at::Device(at::kCPU));
  operand.is_device = true;
  return operand;
}

Operand from_tag(const std::string& tag, const Json& value, const c10::TypePtr& type, const GraphBuilder& builder) {
  if (tag == "as_none") return constant(c10::IValue());
  if (tag == "as_tensor") return tensor_operand(value, type, builder);
  if (tag == "as_int") return number_operand(value.get<std::int64_t>(), type, tag);
  if (tag == "as_float") return number_operand(float_of(value), type, tag);
  if (tag == "as_bool") return number_operand(value.get<bool>(), type, tag);
  if (tag == "as_sym_int" || tag == "as_sym_float" || tag == "as_sym_bool") return symbolic(value, type, tag, builder);
  if (tag == "as_string") return constant(value.get<std::string>());
  if (tag == "as_scalar_type") return constant(static_cast<std::int64_t>(scalar_type_of(value.get<std::int64_t>())));
  if (tag == "as_layout") return numbered(kLayouts, value, "layout");
  if (tag == "as_memory_format") return numbered(kMemoryFormats, value, "memory format");
  if (tag == "as_device") return device_operand();
  if (tag == "as_complex")
    return constant(c10::complex<double>(float_of(value.at("real")), float_of(value.at("imag"))));
  if (tag == "as_ints" || tag == "as_floats" || tag == "as_sym_ints" || tag == "as_sym_floats")
    return list_of_numbers(value, type, tag, builder);
  if (tag == "as_bools") {
    c10::List<bool> list;
    for (const Json& element : value) list.push_back(element.get<bool>());
    return constant(list);
  }
  if (tag == "as_tensors" || tag == "as_optional_tensors") return list_of_tensors(value, type, builder);
  if (tag == "as_optional_tensor") {
    return value.contains("as_tensor") ? tensor_operand(value["as_tensor"], type, builder) : constant(c10::IValue());
  }
  throw Error("has an argument of kind " + tag.substr(tag.starts_with("as_") ? 3 : 0) + ", which is not supported");
}

}  // namespace

Operand operand_of(const Json& argument, const c10::TypePtr& type, const GraphBuilder& builder) {
  if (!argument.is_object() || argument.size() != 1) throw Error("has an argument that is none of torch.export's");
  try {
    return from_tag(argument.begin().key(), argument.begin().value(), plain(type), builder);
  } catch (const Json::exception&) {
    throw Error("has a damaged argument of kind " + argument.begin().key());
  }
}

Operand default_operand(const c10::Argument& argument) {
  if (!argument.default_value()) throw Error("lacks its argument '" + argument.name() + "'");
  return constant(*argument.default_value());
}

}  // namespace dtrain::exported
