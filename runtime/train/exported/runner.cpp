#include "exported/runner.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>

#include "dtrain/base/error.h"

namespace dtrain::exported {
namespace {

using c10::IValue;
using Kind = Instruction::Kind;
namespace autocast = at::autocast;

}  // namespace

// The open regions. The end of a region restores the state that the region changed, also after an exception.
class Runner::Regions {
 public:
  explicit Regions(at::Device device) : device_(device.type()) {}
  ~Regions() {
    while (!open_.empty()) end();
  }
  Regions& operator=(Regions&&) = delete;

  void begin(const Instruction& instruction) {
    Before before{instruction.kind, at::GradMode::is_enabled(), false, at::kFloat};
    if (instruction.kind == Kind::kSetGrad) {
      at::GradMode::set_enabled(instruction.operands[0].constant.toBool());
    } else {
      // The same steps as on entering torch.autocast.
      before.autocast_on = autocast::is_autocast_enabled(device_);
      before.type = autocast::get_autocast_dtype(device_);
      autocast::increment_nesting();
      autocast::set_autocast_enabled(device_, instruction.operands[2].constant.toBool());
      const IValue& type = instruction.operands[1].constant;
      if (type.isInt()) autocast::set_autocast_dtype(device_, static_cast<at::ScalarType>(type.toInt()));
    }
    open_.push_back(before);
  }

  void end() {
    const Before before = open_.back();
    open_.pop_back();
    if (before.kind == Kind::kSetGrad) return at::GradMode::set_enabled(before.grad_mode);
    if (autocast::decrement_nesting() == 0) autocast::clear_cache();
    autocast::set_autocast_enabled(device_, before.autocast_on);
    autocast::set_autocast_dtype(device_, before.type);
  }

 private:
  struct Before {
    Kind kind;
    bool grad_mode;
    bool autocast_on;
    at::ScalarType type;
  };
  const c10::DeviceType device_;
  std::vector<Before> open_;
};

Runner::Runner(const Program& program, const std::vector<at::Tensor>& stored)
    : program_(program), values_(program.values), is_stored_(program.values, false) {
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const Value value = program.stored[i].value;
    values_[index(value)] = stored[i];
    is_stored_[index(value)] = true;
    const bool registered = program.stored[i].kind == Stored::Kind::kParameter ||
                            (program.stored[i].kind == Stored::Kind::kBuffer && program.stored[i].persistent) ||
                            program.stored[i].changed;
    if (!registered) constants_.emplace_back(value, stored[i]);
  }
}

void Runner::move_to(at::Device device) {
  device_ = device;
  for (const auto& [value, tensor] : constants_) values_[index(value)] = tensor.to(device);
}

IValue Runner::take(const Operand& operand) {
  IValue& value = values_[index(operand.value)];
  return operand.last_use ? std::move(value) : value;
}

template <typename Element, typename Convert>
IValue Runner::list_of(const Operand& operand, Convert convert) {
  c10::List<Element> list;
  list.reserve(operand.items.size());
  for (const Operand& item : operand.items) list.push_back(convert(load(item)));
  return list;
}

IValue Runner::load(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kConstant:
      return operand.is_device ? IValue(device_) : operand.constant;
    case Operand::Kind::kValue:
      return take(operand);
    case Operand::Kind::kWrappedNumber:
      return at::native::wrapped_scalar_tensor(take(operand).toScalar());
    case Operand::Kind::kFloat:
      return take(operand).toScalar().toDouble();
    case Operand::Kind::kInts:
      return list_of<std::int64_t>(operand, [](const IValue& item) { return item.toInt(); });
    case Operand::Kind::kFloats:
      return list_of<double>(operand, [](const IValue& item) { return item.toScalar().toDouble(); });
    case Operand::Kind::kTensors:
      return list_of<at::Tensor>(operand, [](const IValue& item) { return item.toTensor(); });
    case Operand::Kind::kOptionalTensors:
      return list_of<std::optional<at::Tensor>>(
          operand, [](const IValue& item) { return item.isNone() ? std::nullopt : std::optional(item.toTensor()); });
  }
  throw Error("an argument of unknown kind");
}

void Runner::put(const Instruction& instruction) {
  const std::size_t count = std::min(instruction.results.size(), stack_.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Result& result = instruction.results[i];
    if (!result.is_list) {
      if (result.value != kNoValue) values_[index(result.value)] = std::move(stack_[i]);
      continue;
    }
    const auto list = stack_[i].toList();
    if (list.size() != result.values.size()) {
      throw Error("it returned " + std::to_string(list.size()) + " tensors where it returned " +
                  std::to_string(result.values.size()) + " when the model was exported");
    }
    for (std::size_t k = 0; k < result.values.size(); ++k) {
      if (result.values[k] != kNoValue) values_[index(result.values[k])] = list.get(k);
    }
  }
  stack_.clear();
}

void Runner::call(const Instruction& instruction, bool training) {
  stack_.clear();
  for (const Operand& operand : instruction.operands) stack_.push_back(load(operand));
  if (!training) {
    if (instruction.skipped_in_evaluation) {
      stack_.resize(1);
      return put(instruction);
    }
    for (const auto& [operand, constant] : instruction.in_evaluation) stack_[operand] = constant;
  }
  instruction.op->callBoxed(&stack_);
  put(instruction);
}

void Runner::number(const Instruction& instruction) {
  stack_.clear();
  for (const Operand& operand : instruction.operands) stack_.push_back(load(operand));
  IValue result;
  if (instruction.kind == Kind::kNumber) {
    result = instruction.number(stack_);
  } else if (instruction.kind == Kind::kSize) {
    result = stack_[0].toTensor().size(stack_[1].toInt());
  } else if (instruction.kind == Kind::kAssert) {
    if (!stack_[0].toScalar().toBool())
      throw Error(stack_[1].isString() ? stack_[1].toStringRef() : "a condition that it asserts does not hold");
  } else {
    result = std::move(stack_[0]);
  }
  stack_.assign(1, std::move(result));
  put(instruction);
}

void Runner::run_instructions(std::size_t first, std::size_t last, bool training, Regions& regions) {
  for (std::size_t i = first; i < last; ++i) {
    if (left_out_ && i == left_out_->instruction) continue;
    const Instruction& instruction = program_.instructions[i];
    failed_ = &instruction;
    if (instruction.kind == Kind::kOperator) {
      call(instruction, training);
    } else if (instruction.kind == Kind::kSetGrad || instruction.kind == Kind::kAutocast) {
      regions.begin(instruction);
    } else if (instruction.kind == Kind::kEndRegion) {
      regions.end();
    } else {
      number(instruction);
    }
  }
}

void Runner::checkpoint(std::vector<CheckpointedPart> parts, RunCheckpointed run) {
  parts_ = std::move(parts);
  run_checkpointed_ = std::move(run);
}

bool Runner::checkpoints(std::size_t instruction) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const CheckpointedPart& part) {
    return part.first <= instruction && instruction < part.last;
  });
}

// Uses separate values, for backward calls it again after the program's values have been released.
std::vector<IValue> Runner::compute_part(const CheckpointedPart& part, std::vector<IValue> inputs) {
  struct Restore {
    Runner& runner;
    std::vector<IValue> values;
    ~Restore() {
      runner.values_ = std::move(values);
      runner.stack_.clear();
    }
  };
  std::vector<IValue> own(values_.size());
  for (const Stored& stored : program_.stored) own[index(stored.value)] = values_[index(stored.value)];
  for (std::size_t i = 0; i < inputs.size(); ++i) own[index(part.inputs[i])] = std::move(inputs[i]);
  const Restore restore{*this, std::exchange(values_, std::move(own))};
  Regions regions(device_);
  run_instructions(part.first, part.last, /*training=*/true, regions);
  std::vector<IValue> outputs;
  for (const Value value : part.outputs) outputs.push_back(values_[index(value)]);
  return outputs;
}

// Tensors pass through autograd. Numbers are sizes, which are the same in forward and in backward.
void Runner::run_part(const CheckpointedPart& part) {
  std::vector<IValue> inputs;
  std::vector<at::Tensor> tensors;
  for (const Value value : part.inputs) {
    inputs.push_back(values_[index(value)]);
    if (!inputs.back().isTensor()) continue;
    tensors.push_back(inputs.back().toTensor());
    inputs.back() = at::Tensor();  // filled in from the function's arguments
  }
  for (const Value value : part.last_used) values_[index(value)] = IValue();
  const auto numbers = std::make_shared<std::vector<IValue>>();
  const auto function = [this, &part, inputs = std::move(inputs), numbers](const std::vector<at::Tensor>& given) {
    std::vector<IValue> own = inputs;
    auto next = given.begin();
    for (IValue& value : own) {
      if (value.isTensor()) value = *next++;
    }
    numbers->clear();
    std::vector<at::Tensor> outputs;
    for (IValue& output : compute_part(part, std::move(own))) {
      if (output.isTensor()) {
        outputs.push_back(output.toTensor());
        numbers->emplace_back(at::Tensor());
      } else {
        numbers->push_back(std::move(output));
      }
    }
    return outputs;
  };
  std::vector<at::Tensor> outputs = run_checkpointed_(function, tensors);
  auto next = outputs.begin();
  for (std::size_t i = 0; i < part.outputs.size(); ++i) {
    IValue& value = values_[index(part.outputs[i])];
    value = (*numbers)[i].isTensor() ? IValue(std::move(*next++)) : (*numbers)[i];
  }
}

std::vector<at::Tensor> Runner::run(std::span<const at::Tensor> inputs, bool training) {
  struct Release {
    Runner& runner;
    ~Release() { runner.release(); }
  };
  failed_ = nullptr;
  const Release release{*this};
  for (std::size_t i = 0; i < program_.inputs.size(); ++i) values_[index(program_.inputs[i].value)] = inputs[i];
  {
    Regions regions(device_);
    std::size_t next = 0;
    if (training) {
      for (const CheckpointedPart& part : parts_) {
        run_instructions(next, part.first, training, regions);
        run_part(part);
        next = part.last;
      }
    }
    run_instructions(next, program_.instructions.size(), training, regions);
  }
  failed_ = nullptr;
  for (const auto& update : program_.buffer_updates) {
    if (!training && update.skipped_in_evaluation) continue;
    const at::NoGradGuard no_grad;
    values_[index(update.buffer)].toTensor().copy_(values_[index(update.value)].toTensor());
  }
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
    const Output& output = program_.outputs[i];
    const Value value = left_out_ && i == left_out_->output ? left_out_->input : output.value;
    outputs.push_back(output.is_tensor ? values_[index(value)].toTensor() : at::Tensor());
  }
  return outputs;
}

void Runner::release() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!is_stored_[i]) values_[i] = IValue();
  }
  stack_.clear();
}

}  // namespace dtrain::exported
