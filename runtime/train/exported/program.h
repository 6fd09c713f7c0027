// An exported program as it is run: a list of instructions over numbered values. Everything that the file says in text
// is resolved when it is loaded: operators to the dispatcher's handles, arguments to values or constants of the type
// that the operator's schema asks for. Plain data; immutable once it is read, but for constants that name a device.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "exported/expression.h"
#include "exported/numbers.h"

namespace dtrain::exported {

using Value = std::int32_t;  // its number
inline constexpr Value kNoValue = -1;

// An argument of an instruction.
struct Operand {
  enum class Kind {
    kConstant,
    kValue,
    kWrappedNumber,  // a number where a tensor is taken: a tensor without dimensions that does not decide on types
    kFloat,          // a number where floating point is taken
    kInts,           // lists, of `items`
    kFloats,
    kTensors,
    kOptionalTensors
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant;          // also one of kInts' items
  Value value = kNoValue;        // kValue, kWrappedNumber, kFloat
  bool last_use = false;         // of the value
  bool is_device = false;        // a constant to be replaced by the device that the program runs on
  std::vector<Operand> items{};  // kConstant or kValue; a constant None is no tensor
};

// What an instruction returns at one place: a value, a list of them (of a list of tensors), or nothing that is used.
struct Result {
  Value value = kNoValue;
  bool is_list = false;
  std::vector<Value> values{};
};

struct Instruction {
  enum class Kind {
    kOperator,   // of the dispatcher
    kNumber,     // of Python: _operator.add and the like
    kSize,       // a dimension of a tensor: operands tensor, dimension
    kAssert,     // operands: condition, message
    kSetGrad,    // begins a region: operand on
    kAutocast,   // begins a region, for the device that the program runs on: operands device type, type, on
    kEndRegion,  // the last one begun
    kCopy        // of its only operand, a constant
  };
  Kind kind = Kind::kOperator;
  std::optional<c10::OperatorHandle> op{};  // kOperator
  NumberOperator number = nullptr;          // kNumber
  std::string target;                       // "aten.conv2d.default"
  std::string module;                       // whose forward() it is part of: "layer1.0.conv1"; empty: the model
  std::string module_class;                 // "Conv2d"
  std::string code;                         // the line of forward() in Python that made it; empty: not known
  std::vector<Operand> operands{};
  std::vector<Result> results{};
  // In evaluation (evaluation_mode.h): other constants for operands, or the first operand is passed on instead.
  std::vector<std::pair<std::size_t, c10::IValue>> in_evaluation{};
  bool skipped_in_evaluation = false;
  bool always_trains = false;  // dropout that its author has written to drop in evaluation, too
};

// A dimension of an input: a number, or an expression of symbols.
using Dimension = std::variant<std::int64_t, Expression>;

struct Input {
  std::string name;  // as forward() and its structure in Python name it: "input_ids", "batch.0"
  std::string path;  // as guards name it: "L['input_ids']"
  Value value = kNoValue;
  at::ScalarType type = at::kFloat;
  std::vector<Dimension> shape{};
};

struct Output {
  std::string name;  // "logits", "0", "state.1"; "" of a tensor that is all the model returns
  Value value = kNoValue;
  bool is_tensor = true;
};

// A parameter, buffer or constant, which the program has as a value.
struct Stored {
  enum class Kind { kParameter, kBuffer, kConstant };
  Kind kind = Kind::kParameter;
  std::string name;  // of state_dict(), or of the constants
  Value value = kNoValue;
  bool persistent = true;  // a buffer of state_dict()
  bool changed = false;    // a buffer that the program writes
};

// Whole numbers that a symbol may be.
struct Range {
  std::int64_t least = 0;
  std::optional<std::int64_t> most{};
};

struct Guard {
  std::string text;
  Expression condition;
};

struct Program {
  std::vector<Instruction> instructions;
  std::size_t values = 0;  // how many
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Stored> stored;  // in the order of the file, which is that of named_parameters(), then named_buffers()
  // Values that are written back into buffers after the program has run.
  struct BufferUpdate {
    Value buffer = kNoValue, value = kNoValue;
    std::string name;
    bool skipped_in_evaluation = false;
  };
  std::vector<BufferUpdate> buffer_updates;
  std::map<std::string, Range> ranges;  // of symbols
  std::vector<Guard> guards;
  std::vector<std::string> unread_guards;      // in a form that is not understood here
  std::map<std::string, std::string> classes;  // of modules: "layer1.0.conv1" -> "Conv2d"
  std::string why_no_evaluation;  // in evaluation mode, as the continuation of "because"; empty: it can be evaluated
  // Lines of Python that call a function with a lost backward, or a module that is not the model's (lost_backward.h).
  std::vector<std::string> suspected_backward;
  std::string torch_version;                           // that exported it
  std::pair<std::int64_t, std::int64_t> schema{0, 0};  // major, minor
};

}  // namespace dtrain::exported
