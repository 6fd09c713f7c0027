// Runs an exported program: calls its operators one after another through the dispatcher, so that autograd, autocast
// and whoever watches operators see them as those of any model. In a step there is no text and no JSON: an
// instruction's arguments are put on one stack, which is kept, and its results into numbered values. One thread at a
// time.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "exported/checkpointed_modules.h"
#include "exported/program.h"

namespace dtrain::exported {

// Calls a function with tensors and returns what it returns; backward calls the function again instead of keeping what
// it has computed (dtrain/train/gradient_checkpointing.h).
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
using RunCheckpointed =
    std::function<std::vector<at::Tensor>(TensorFunction function, const std::vector<at::Tensor>& inputs)>;

class Runner {
 public:
  // `program` outlives it. `stored`: the tensor of each of program.stored. They are kept: what training does to a
  // parameter in place (other memory, another device) the program sees.
  Runner(const Program& program, const std::vector<at::Tensor>& stored);

  // Where operators that make tensors make them, and constants are. Before the first run(), and once.
  void move_to(at::Device device);

  // From now on these parts of the program (in its order) are computed again in backward, by `run`.
  void checkpoint(std::vector<CheckpointedPart> parts, RunCheckpointed run);

  // `inputs`: in the order of program.inputs, already checked. Returns program.outputs in their order; undefined: the
  // output is no tensor. Throws what an operator throws; failed() says which.
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs, bool training);

  // The instruction whose operator has thrown in the last run(); null: none.
  const Instruction* failed() const { return failed_; }

 private:
  class Regions;

  c10::IValue take(const Operand& operand);
  c10::IValue load(const Operand& operand);
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
  std::vector<std::pair<Value, at::Tensor>> constants_;  // to be moved to the device
  at::Device device_ = at::kCPU;
  std::vector<CheckpointedPart> parts_;
  RunCheckpointed run_checkpointed_;
  const Instruction* failed_ = nullptr;
};

}  // namespace dtrain::exported
