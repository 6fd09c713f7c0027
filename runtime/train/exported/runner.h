// Runs an exported program: calls its operators one after another through the dispatcher, so that autograd, autocast
// and observers of operators work as for any model. A step handles no text and no JSON: the arguments of an instruction
// go onto a stack that is reused, and its results into numbered values. One thread at a time.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "exported/checkpointed_modules.h"
#include "exported/program.h"

namespace dtrain::exported {

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
  std::vector<CheckpointedPart> parts_;
  RunCheckpointed run_checkpointed_;
  const Instruction* failed_ = nullptr;
};

}  // namespace dtrain::exported
