// Runs an exported program: calls its operators one after another through the dispatcher, so that autograd, autocast
// and observers of operators work as for any model. A step handles no text and no JSON: the arguments of an instruction
// go onto a stack that is reused, and its results into numbered values. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "exported/program.h"

namespace dtrain::exported {

// Checks that a batch has shapes the program was exported for: numbers of dimensions, fixed sizes, ranges, and
// relations between sizes of several inputs. Each new combination of shapes is checked once.
class ShapeCheck {
 public:
  // `program` outlives the check.
  explicit ShapeCheck(const Program& program) : program_(program) {}

  // `inputs`: as many as the program has. Error names the input, its size, and the size it must have.
  void check(std::span<const at::Tensor> inputs);
  // Throws an Error if batches of this number of samples do not fit the first dimensions of the inputs. Error says for
  // which sizes the program was exported.
  void check_samples(std::int64_t samples) const;

 private:
  void check_new(std::span<const at::Tensor> inputs) const;

  const Program& program_;
  std::vector<std::vector<std::int64_t>> known_;  // sizes of all inputs, one after another; the newest last
  std::vector<std::int64_t> sizes_;               // of the current batch
};

// A part of the program that keeps only its inputs, and is computed again in backward (gradient checkpointing): a run
// of consecutive instructions of one chosen module.
struct CheckpointedPart {
  std::string module;               // "blocks.0"
  std::size_t first = 0, last = 0;  // indices in Program::instructions; last is not included
  std::vector<Value> inputs;        // made before the part, used in it; no parameters, buffers and constants
  std::vector<Value> last_used;     // the inputs that nothing needs after the part
  std::vector<Value> outputs;       // made in the part, needed after it
};

// Returns the parts of the modules whose names match one of `patterns`, which vertical bars divide; * stands for any
// text. If both a module and a module around it match, the outermost counts. A module has several parts if a no_grad or
// autocast region reaches beyond it, or if instructions of other modules stand between its own. A part has at least two
// operators. ConfigError, which begins with `key`, if there is no part, or if a module writes its input in place.
std::vector<CheckpointedPart> checkpointed_parts(const Program& program, const std::string& patterns,
                                                 const std::string& key);

// The linear layer that makes an output of the program, and whose result has no other use.
struct LastLayer {
  std::size_t output = 0;       // index in Program::outputs
  std::size_t instruction = 0;  // index in Program::instructions
  Value input = kNoValue;
  const Stored* weight = nullptr;
  const Stored* bias = nullptr;  // null: none
};

// Returns the layer, or why there is none that may be left out, as the continuation of "because".
std::variant<LastLayer, std::string> last_layer(const Program& program, std::size_t output);

// Calls a function with tensors and returns its result. Backward calls the function again, so that its activations need
// not be kept (dtrain/train/gradient_checkpointing.h).
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
using RunCheckpointed =
    std::function<std::vector<at::Tensor>(TensorFunction function, const std::vector<at::Tensor>& inputs)>;

class Runner {
 public:
  // `program` outlives the runner. `stored`: one tensor for each of program.stored. The runner shares them, so the
  // program sees in-place changes of a parameter by training (other memory, another device).
  Runner(const Program& program, const std::vector<at::Tensor>& stored);

  // Sets the device of constants and of tensors that operators create. Called once, before the first run().
  void move_to(at::Device device);

  // Lets `run` compute these parts of the program again in backward. `parts`: in the program's order.
  void checkpoint(std::vector<CheckpointedPart> parts, RunCheckpointed run);

  // True if backward computes the instruction again.
  bool checkpoints(std::size_t instruction) const;

  // From then on run() leaves the layer out, and returns its input in the place of the output.
  void leave_out(const LastLayer& layer) { left_out_ = layer; }
  // Returns the tensor that the program shares with training.
  at::Tensor stored(const Stored& stored) const { return values_[index(stored.value)].toTensor(); }

  // `inputs`: in the order of program.inputs, already checked. Returns program.outputs in their order; undefined: the
  // output is no tensor. Passes on an operator's exception; failed() returns its instruction.
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs, bool training);

  // The instruction that threw in the last run(); null: none.
  const Instruction* failed() const { return failed_; }

 private:
  class Regions;

  c10::IValue take(const Operand& operand);
  c10::IValue load(const Operand& operand);
  template <typename Element, typename Convert>
  c10::IValue list_of(const Operand& operand, Convert convert);
  void put(const Instruction& instruction);
  void call(const Instruction& instruction, bool training);
  void number(const Instruction& instruction);
  void run_instructions(std::size_t first, std::size_t last, bool training, Regions& regions);
  void run_part(const CheckpointedPart& part);
  std::vector<c10::IValue> compute_part(const CheckpointedPart& part, std::vector<c10::IValue> inputs);
  void release();

  const Program& program_;
  std::vector<c10::IValue> values_;
  std::vector<c10::IValue> stack_;
  std::vector<bool> is_stored_;
  std::vector<std::pair<Value, at::Tensor>> constants_;  // the tensors that move_to() moves
  at::Device device_ = at::kCPU;
  std::optional<LastLayer> left_out_;
  std::vector<CheckpointedPart> parts_;
  RunCheckpointed run_checkpointed_;
  const Instruction* failed_ = nullptr;
};

}  // namespace dtrain::exported
