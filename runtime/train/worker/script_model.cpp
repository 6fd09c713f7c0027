#include "script_model.h"

#include <new>
#include <sstream>
#include <utility>

#include <torch/csrc/jit/runtime/graph_executor.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "forward_error.h"
#include "script_file.h"

namespace dtrain::worker {

namespace {

// "BatchNorm2d"; by it training tells layers that stay in float32 (ParameterTypes).
std::string class_of(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->name() : "ScriptModule";
}

}  // namespace

ScriptTree::ScriptTree(const torch::jit::Module& script) : torch::nn::Module(class_of(script)), script_(script) {
  torch::nn::Module::train(script.is_training());  // before it has parts, which have modes of their own
  const auto type = script.type();
  for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const std::string& name = type->getAttributeName(slot);
    const auto value = script._ivalue()->getSlot(slot);
    if (type->getAttribute(slot)->is_module()) {
      register_module(name, std::make_shared<ScriptTree>(torch::jit::Module(value.toObject())));
    } else if (value.isTensor() && value.toTensor().defined()) {
      if (type->is_parameter(slot)) {
        register_parameter(name, value.toTensor(), value.toTensor().requires_grad());
      } else if (type->is_buffer(slot)) {
        buffers_.push_back({script._ivalue(), slot, register_buffer(name, value.toTensor())});
      }
    }
  }
}

void ScriptTree::train(bool on) {
  torch::nn::Module::train(on);
  script_.train(on);
}

void ScriptTree::take_over_buffers() {
  // Collected before any is changed: a script may hand a buffer on to another (`self.before = self.now`).
  std::vector<std::pair<BufferSlot*, at::Tensor>> assigned;
  collect_assigned(assigned);
  // On a device a buffer keeps its place, as what is captured as a CUDA graph must.
  const auto stays = [](const at::Tensor& buffer, const at::Tensor& value) {
    return !buffer.is_cpu() && buffer.sizes() == value.sizes() && buffer.scalar_type() == value.scalar_type() &&
           buffer.device() == value.device();
  };
  const at::NoGradGuard no_grad;
  for (auto& [buffer, value] : assigned) {
    if (stays(buffer->registered, value)) value = value.clone();  // it may be another buffer
  }
  for (const auto& [buffer, value] : assigned) {
    if (stays(buffer->registered, value)) {
      buffer->registered.copy_(value);
    } else {
      buffer->registered.set_data(value);
    }
    buffer->owner->setSlot(buffer->slot, buffer->registered);
  }
}

void ScriptTree::drop_assigned_buffers() {
  std::vector<std::pair<BufferSlot*, at::Tensor>> assigned;
  collect_assigned(assigned);
  for (const auto& [buffer, value] : assigned) buffer->owner->setSlot(buffer->slot, buffer->registered);
}

void ScriptTree::collect_assigned(std::vector<std::pair<BufferSlot*, at::Tensor>>& assigned) {
  for (BufferSlot& buffer : buffers_) {
    const auto value = buffer.owner->getSlot(buffer.slot);
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_same(buffer.registered)) {
      assigned.emplace_back(&buffer, value.toTensor().detach());
    }
  }
  for (const auto& module : children()) module->as<ScriptTree>()->collect_assigned(assigned);
}

namespace {

// A parameter's storage is all parameters' flat one, and a file holds whole storages. Gives each one of its own for as
// long as it lives.
class OwnStorages {
 public:
  explicit OwnStorages(const torch::nn::Module& model) {
    for (const at::Tensor& parameter : model.parameters()) {
      places_.emplace_back(parameter, parameter.variable_data());
      at::Tensor(parameter).set_data(parameter.variable_data().clone());
    }
  }
  ~OwnStorages() {
    // Backwards: a parameter that two modules share is there twice, and its first entry has the place it came from.
    for (auto entry = places_.rbegin(); entry != places_.rend(); ++entry) entry->first.set_data(entry->second);
  }
  OwnStorages(const OwnStorages&) = delete;
  OwnStorages& operator=(const OwnStorages&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> places_;
};

}  // namespace

ScriptModel::ScriptModel(std::filesystem::path file) : file_(std::move(file)), script_(load_script(file_)) {
  check_script(script_, file_);
  tree_ = std::make_shared<ScriptTree>(script_);
  for (const at::Tensor& parameter : tree_->parameters()) {
    if (!parameter.requires_grad()) continue;
    dtype_ = parameter.scalar_type();
    break;
  }
}

void ScriptModel::check_signature(const std::vector<std::string>& inputs,
                                  const std::vector<OutputChoice>& outputs) const {
  check_forward(script_, file_, inputs);
  const auto returned = script_.get_method("forward").function().getSchema().returns().at(0).type();
  for (const OutputChoice& output : outputs) check_choice(returned, output, file_.string());
}

torch::jit::IValue ScriptModel::forward(const std::vector<at::Tensor>& inputs) {
  // Its optimizer fuses nothing on CPUs, makes the first steps slow, and has derivatives of its own for some operators:
  // without it the model computes what it does in Python as a plain module.
  const torch::jit::GraphOptimizerEnabledGuard plain(false);
  try {
    return script_.forward(std::vector<torch::jit::IValue>(inputs.begin(), inputs.end()));
  } catch (const std::exception& error) {
    const std::string message = torch_message(error);
    const std::string where = failed_submodule(message, script_, file_);
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                           message.find("can't allocate memory") != std::string::npos;
    std::string shapes = describe(inputs.front());
    for (std::size_t i = 1; i < inputs.size(); ++i)
      shapes += (i == 1 ? " and further inputs " : ", ") + describe(inputs[i]);
    throw Error("the model's forward() failed on features of shape " + shapes + (where.empty() ? "" : ", in " + where) +
                    ": " + torch_cause(message),
                no_memory ? "lower hyperparameters.global_batch_size"
                          : "give it data of the shape and type it was made for, or change the model");
  }
}

void ScriptModel::save(const std::filesystem::path& path) const {
  std::ostringstream content;
  {
    const OwnStorages storages(*tree_);
    const bool training = tree_->is_training();
    tree_->eval();
    script_.save(content);
    tree_->train(training);
  }
  write_file_atomic(path, content.view());
}

}  // namespace dtrain::worker
