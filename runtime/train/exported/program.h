// An exported program in executable form: a list of instructions over numbered values. Loading resolves all text:
// operators to the dispatcher's handles, arguments to values or constants of the type in the operator's schema. Plain
// data; immutable once it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "exported/archive.h"

namespace dtrain::exported {

// Integer expressions in files of torch.export: sizes ("Mul(Integer(2), Symbol('s77'))") and guards ("L['x'].size()[0]
// == L['mask'].size()[0]"). Both use a part of Python's syntax. Immutable.
class Expression {
 public:
  // Parses the text; empty: it is not in the supported part of the syntax.
  static std::optional<Expression> parse(const std::string& text);

  // Returns the value of a symbol ("s77") or of a path ("L['x'].size()[0]"); empty: not known.
  using Lookup = std::function<std::optional<std::int64_t>(const std::string& name)>;
  // Returns the value; a comparison is 1 or 0. Empty: a name is not known, a result overflows, a division by 0.
  std::optional<std::int64_t> value(const Lookup& lookup) const;

  // The name, if the expression is one symbol; otherwise empty.
  std::optional<std::string> symbol() const;
  // The names of all symbols and paths in the expression.
  const std::vector<std::string>& names() const { return names_; }

 private:
  friend class ExpressionParser;
  struct Node {
    std::string operation;  // "name", "number", or an operator
    std::int64_t number = 0;
    std::string name;
    std::vector<Node> operands;
  };
  static std::optional<std::int64_t> value_of(const Node& node, const Lookup& lookup);

  Node root_;
  std::vector<std::string> names_;
};

using Value = std::int32_t;  // index in the list of values
inline constexpr Value kNoValue = -1;
inline std::size_t index(Value value) {
  return static_cast<std::size_t>(value);
}

// An argument of an instruction.
struct Operand {
  enum class Kind {
    kConstant,
    kValue,
    kWrappedNumber,  // a number passed as a tensor without dimensions that does not decide types
    kFloat,          // a number passed as floating point
    kInts,           // this and the following kinds: a list of `items`
    kFloats,
    kTensors,
    kOptionalTensors
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant;          // of kConstant
  Value value = kNoValue;        // kValue, kWrappedNumber, kFloat
  bool last_use = false;         // true if no later instruction uses the value
  bool is_device = false;        // true: replaced by the device that the program runs on
  std::vector<Operand> items{};  // the list's elements; a constant None is no tensor
};

// One result of an instruction: a value, several values for a list of tensors, or kNoValue if nothing uses it.
struct Result {
  Value value = kNoValue;
  bool is_list = false;
  std::vector<Value> values{};
};

using NumberOperator = c10::IValue (*)(const std::vector<c10::IValue>& operands);

// An operator of Python on numbers: "_operator.add", "math.trunc", "torch.sym_max", …. `compute` takes `operands` ints,
// floats and bools, and throws an Error for a division by 0 and for an overflow.
struct NamedNumberOperator {
  const char* name;
  std::size_t operands;
  NumberOperator compute;
};
// Returns the operator with this name; null: there is none.
const NamedNumberOperator* number_operator(const std::string& name);

struct Instruction {
  enum class Kind {
    kOperator,   // an operator of the dispatcher
    kNumber,     // an operator of Python on numbers, such as _operator.add
    kSize,       // a dimension of a tensor: operands tensor, dimension
    kAssert,     // operands: condition, message
    kSetGrad,    // begins a region: operand on
    kAutocast,   // begins a region, for the device that the program runs on: operands device type, type, on
    kEndRegion,  // ends the region that began last
    kCopy        // copies its only operand, a constant
  };
  Kind kind = Kind::kOperator;
  std::optional<c10::OperatorHandle> op{};  // kOperator
  NumberOperator number = nullptr;          // kNumber
  std::string target;                       // "aten.conv2d.default"
  std::string module;                       // its forward() has the instruction: "layer1.0.conv1"; empty: the model
  std::string module_class;                 // "Conv2d"
  std::string code;                         // the line of forward() in Python that made it; empty: not known
  std::vector<Operand> operands{};
  std::vector<Result> results{};
  // In evaluation (evaluation_mode.h) these constants replace operands; if skipped, the first operand is the result.
  std::vector<std::pair<std::size_t, c10::IValue>> in_evaluation{};
  bool skipped_in_evaluation = false;
  bool always_trains = false;  // dropout that its author keeps on in evaluation
};

// Calls `use` with each operand that is a value, also those in lists.
template <typename Use>
void for_each_operand(const Instruction& instruction, Use use) {
  for (const Operand& operand : instruction.operands) {
    if (operand.value != kNoValue) use(operand);
    for (const Operand& item : operand.items) {
      if (item.value != kNoValue) use(item);
    }
  }
}

// A dimension of an input: a number, or an expression of symbols.
using Dimension = std::variant<std::int64_t, Expression>;

struct Input {
  std::string name;  // name in forward() and the input's structure: "input_ids", "batch.0"
  std::string path;  // name in guards: "L['input_ids']"
  Value value = kNoValue;
  at::ScalarType type = at::kFloat;
  std::vector<Dimension> shape{};
};

struct Output {
  std::string name;  // "logits", "0", "state.1"; "" if the model returns one tensor
  Value value = kNoValue;
  bool is_tensor = true;
};

// A parameter, buffer or constant, which is a value of the program.
struct Stored {
  enum class Kind { kParameter, kBuffer, kConstant };
  Kind kind = Kind::kParameter;
  std::string name;  // name in state_dict() or of the constant
  Value value = kNoValue;
  bool persistent = true;  // true if state_dict() has the buffer
  bool changed = false;    // true if the program writes the tensor
};

// The range of integers that a symbol may have.
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
  std::size_t values = 0;  // number of values
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Stored> stored;  // in the file's order: named_parameters(), then named_buffers()
  // A value that is written back into a buffer after the program has run.
  struct BufferUpdate {
    Value buffer = kNoValue, value = kNoValue;
    std::string name;
    bool skipped_in_evaluation = false;
  };
  std::vector<BufferUpdate> buffer_updates;
  std::map<std::string, Range> ranges;  // of symbols
  std::vector<Guard> guards;
  std::vector<std::string> unread_guards;      // guards that Expression cannot parse
  std::map<std::string, std::string> classes;  // of modules: "layer1.0.conv1" -> "Conv2d"
  std::string why_no_evaluation;               // the continuation of "because"; empty: evaluation is possible
  // Lines of Python that call a function with lost backward code or a module of another owner (LostBackward).
  std::vector<std::string> suspected_backward;
  std::string torch_version;                           // PyTorch version of the export
  std::pair<std::int64_t, std::int64_t> schema{0, 0};  // major, minor
};

// Reads an exported program from its archive: the graph, the names of its inputs and outputs, the constraints on its
// sizes. Everything that is not supported is refused here, by name.
//
// ConfigError names everything that is not supported, or what is damaged, and for a program that `is_trained` also lost
// backward code (LostBackward). weights.h reads the tensors.
Program read_program(const Archive& archive, bool is_trained);

}  // namespace dtrain::exported
