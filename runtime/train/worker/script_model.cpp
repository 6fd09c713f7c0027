// A TorchScript file as a model that dtrain trains in place. The file is checked on loading. Parameters and buffers
// have their names in Python, errors of forward() name the parameter or the method, and save() writes a file that
// Python's torch.jit.load reads. Two files may form one model: one is trained, and one for validation shares its
// parameters. Training thread.
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/nn/module.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "worker/file_model.h"
#include "worker/script_file.h"

namespace dtrain::worker {
namespace {

// The module's class, "BatchNorm2d", by which training finds layers that stay in float32 (ParameterTypes).
std::string class_of(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->name() : "ScriptModule";
}

// All parameters share one flat storage, and a file holds whole storages. Gives each parameter its own storage for the
// lifetime of this object.
class OwnStorages {
 public:
  explicit OwnStorages(const torch::nn::Module& model) {
    for (const at::Tensor& parameter : model.parameters()) {
      places_.emplace_back(parameter, parameter.variable_data());
      at::Tensor(parameter).set_data(parameter.variable_data().clone());
    }
  }
  ~OwnStorages() {
    // In reverse order: a parameter that two modules share has two entries, and the first has its original storage.
    for (auto entry = places_.rbegin(); entry != places_.rend(); ++entry) entry->first.set_data(entry->second);
  }
  OwnStorages& operator=(OwnStorages&&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> places_;
};

// Mirrors the script's tree of modules. Parameters and buffers are the script's own tensors, so the script sees their
// changes by training (flat storage, gradients). Switching training mode switches the script.
class ScriptTree final : public torch::nn::Module {
 public:
  explicit ScriptTree(const torch::jit::Module& script) : torch::nn::Module(class_of(script)), script_(script) {
    torch::nn::Module::train(script.is_training());  // before submodules exist, which have separate modes
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

  void train(bool on = true) override {
    torch::nn::Module::train(on);
    script_.train(on);
  }

  // A script may assign a new tensor to a buffer (`self.mean = …`). Puts the registered tensor back in its place, with
  // the new tensor's values. Call it after backward (which may still need the old values), or after a forward without
  // gradients.
  void take_over_buffers() {
    // All are collected before any changes: a script may assign a buffer to another (`self.before = self.now`).
    std::vector<std::pair<BufferSlot*, at::Tensor>> assigned;
    collect_assigned(assigned);
    // On a device a buffer keeps its memory, which a captured CUDA graph requires.
    const auto stays = [](const at::Tensor& buffer, const at::Tensor& value) {
      return !buffer.is_cpu() && buffer.sizes() == value.sizes() && buffer.scalar_type() == value.scalar_type() &&
             buffer.device() == value.device();
    };
    const at::NoGradGuard no_grad;
    for (auto& [buffer, value] : assigned) {
      if (stays(buffer->registered, value)) value = value.clone();  // the value may be another buffer
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

  // Puts the registered tensors back without the new values: buffers are as before forward().
  void drop_assigned_buffers() {
    std::vector<std::pair<BufferSlot*, at::Tensor>> assigned;
    collect_assigned(assigned);
    for (const auto& [buffer, value] : assigned) buffer->owner->setSlot(buffer->slot, buffer->registered);
  }

 private:
  struct BufferSlot {
    torch::jit::ObjectPtr owner;
    std::size_t slot;
    at::Tensor registered;
  };
  void collect_assigned(std::vector<std::pair<BufferSlot*, at::Tensor>>& assigned) {
    for (BufferSlot& buffer : buffers_) {
      const auto value = buffer.owner->getSlot(buffer.slot);
      if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_same(buffer.registered)) {
        assigned.emplace_back(&buffer, value.toTensor().detach());
      }
    }
    for (const auto& module : children()) module->as<ScriptTree>()->collect_assigned(assigned);
  }

  torch::jit::Module script_;
  std::vector<BufferSlot> buffers_;
};

// Replaces the tensors of a script by those of another model, by name. From then on both models have the same tensors,
// as a ScriptTree shares them with its script, so that every change by training applies to both: flat storage, other
// values during a validation, another device.
class TensorsOfOther {
 public:
  TensorsOfOther(const ScriptTree& other, const std::filesystem::path& other_file, const std::filesystem::path& file)
      : other_file_(other_file), file_(file) {
    for (const auto& item : other.named_parameters()) tensors_.emplace(item.key(), item.value());
    for (const auto& item : other.named_buffers()) tensors_.emplace(item.key(), item.value());
  }

  // Returns the number of tensors that require a gradient.
  std::size_t put_into(const torch::jit::Module& script, const std::string& prefix = "") const {
    std::size_t trained = 0;
    const auto type = script.type();
    for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const std::string name = prefix + type->getAttributeName(slot);
      const auto value = script._ivalue()->getSlot(slot);
      if (type->getAttribute(slot)->is_module()) {
        trained += put_into(torch::jit::Module(value.toObject()), name + ".");
      } else if (value.isTensor() && value.toTensor().defined() &&
                 (type->is_parameter(slot) || type->is_buffer(slot))) {
        const char* kind = type->is_parameter(slot) ? "parameter" : "buffer";
        const at::Tensor& tensor = tensor_for(kind, name, value.toTensor());
        script._ivalue()->setSlot(slot, tensor);
        trained += tensor.requires_grad() ? 1 : 0;
      }
    }
    return trained;
  }

 private:
  const at::Tensor& tensor_for(const std::string& kind, const std::string& name, const at::Tensor& own) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw ConfigError("model: " + file_.string() + " has a " + kind + " '" + name + "', which " +
                            other_file_.string() + " does not have",
                        kSameModel);
    }
    const at::Tensor& tensor = found->second;
    if (own.sizes() != tensor.sizes() || own.scalar_type() != tensor.scalar_type()) {
      throw ConfigError("model: " + file_.string() + ": " + kind + " '" + name + "' is " + describe(own) + ", in " +
                            other_file_.string() + " it is " + describe(tensor),
                        kSameModel);
    }
    return tensor;
  }

  static constexpr const char* kSameModel = "save both files from the same model in Python, once in each mode";

  const std::filesystem::path& other_file_;
  const std::filesystem::path& file_;
  std::map<std::string, at::Tensor> tensors_;
};

// The data's tensors are passed by position. ConfigError if one has the name of an argument at another position.
void check_order(const torch::jit::Module& script, const std::filesystem::path& file,
                 const std::vector<ModelInput>& inputs) {
  const auto& arguments = script.get_method("forward").function().getSchema().arguments();  // the first one is self
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      if (i == j || inputs[i].name.empty() || arguments[j + 1].name() != inputs[i].name) continue;
      throw ConfigError("model: " + file.string() + ": forward() takes '" + inputs[i].name + "' as argument " +
                            std::to_string(j + 1) + ", and the data gives it as argument " + std::to_string(i + 1),
                        "give the arguments of forward() the order of the data's tensors, or other names");
    }
  }
}

class ScriptModel final : public FileModel {
 public:
  // ConfigError: no such file, no TorchScript (and how to make one), no parameter that requires a gradient, tensors
  // that are not on the CPU.
  explicit ScriptModel(std::filesystem::path file) : file_(std::move(file)), script_(load_script(file_)) {
    check_script(script_, file_);
    tree_ = std::make_shared<ScriptTree>(script_);
    dtype_ = trained_type(*tree_);
  }

  // A model for validation, described at load_eval_model().
  ScriptModel(std::filesystem::path file, const ScriptModel& trained)
      : file_(std::move(file)), script_(load_script(file_)), dtype_(trained.dtype_) {
    check_devices(script_, file_);
    if (TensorsOfOther(*trained.tree_, trained.file_, file_).put_into(script_) == 0) {
      throw ConfigError(
          "model: " + file_.string() + " has none of the parameters that are trained in " + trained.file_.string(),
          "save it before torch.jit.freeze(), which makes constants of them");
    }
    tree_ = std::make_shared<ScriptTree>(script_);
    tree_->eval();
  }

  void check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) override {
    std::vector<std::string> described;
    for (const ModelInput& input : inputs) described.push_back(input.described);
    check_forward(script_, file_, described);
    check_order(script_, file_, inputs);
    const auto returned = script_.get_method("forward").function().getSchema().returns().at(0).type();
    for (const OutputChoice& output : outputs) check_choice(returned, output, file_.string());
  }

  bool returns_one_tensor() const override {
    const auto forward = script_.find_method("forward");
    if (!forward) return false;
    return forward->function().getSchema().returns().at(0).type()->isSubtypeOf(*c10::TensorType::get());
  }

  std::shared_ptr<torch::nn::Module> tree() const override { return tree_; }
  at::ScalarType dtype() const override { return dtype_; }
  // The Error also names the submodule that failed with its parameters' shapes.
  c10::IValue forward(const std::vector<at::Tensor>& inputs) override {
    // The graph optimizer is off: it fuses nothing on CPUs, makes the first steps slow, and has other derivatives for
    // some operators. Without it the model computes the same as a plain module in Python.
    const torch::jit::GraphOptimizerEnabledGuard plain(false);
    try {
      std::vector<torch::jit::IValue> arguments(inputs.begin(), inputs.end());
      if (!short_forward_) return script_.forward(std::move(arguments));
      arguments.insert(arguments.begin(), script_._ivalue());
      return (*short_forward_)(std::move(arguments));
    } catch (const std::exception& error) {
      const std::string message = torch_message(error);
      const std::string where = failed_submodule(message, script_, file_);
      const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                             message.find("can't allocate memory") != std::string::npos;
      std::string shapes = describe(inputs.front());
      for (std::size_t i = 1; i < inputs.size(); ++i)
        shapes += (i == 1 ? " and further inputs " : ", ") + describe(inputs[i]);
      throw Error("the model's forward() failed on features of shape " + shapes +
                      (where.empty() ? "" : ", in " + where) + ": " + torch_cause(message),
                  no_memory ? "lower hyperparameters.global_batch_size"
                            : "give it data of the shape and type it was made for, or change the model");
    }
  }

  at::Tensor output(const c10::IValue& returned, const OutputChoice& choice) const override {
    return chosen_output(returned, choice);
  }
  TakenLayer take_last_layer(const OutputChoice& output, std::int64_t least_classes) override {
    const auto returned = script_.get_method("forward").function().getSchema().returns().at(0).type();
    const auto tuple = returned->cast<c10::TupleType>();
    if (!tuple && !output.name.empty()) return {{}, "its forward() returns " + returned->annotation_str()};
    ShortScript found = without_last_layer(script_, tuple ? element_of(*tuple, output.name) : std::nullopt);
    if (!found.forward) return {{}, found.why_not};
    if (found.layer.classes() < least_classes) {
      return {found.layer, "its last layer has " + std::to_string(found.layer.classes()) + " classes, fewer than " +
                               std::to_string(least_classes)};
    }
    short_forward_ = std::move(found.forward);
    return {std::move(found.layer), ""};
  }

  void checkpoint_modules(const std::string& /*patterns*/, const std::string& key) override {
    throw ConfigError(key + " is not supported for TorchScript, whose operators do not say which module they belong to",
                      "export the model with torch.export (docs/exporting.md), or leave the key out");
  }

  void take_over_buffers() override { tree_->take_over_buffers(); }
  void drop_assigned_buffers() override { tree_->drop_assigned_buffers(); }
  std::string why_not_repeatable() const override {
    const auto attribute = changed_attribute(script_);
    return attribute ? "the model's forward() changes its attribute '" + *attribute +
                           "', which is neither a parameter nor a buffer"
                     : "";
  }

  std::optional<Warning> fixed_mode(bool for_training, bool for_evaluation) const override {
    const auto fixed = for_evaluation ? always_training(script_) : std::vector<std::string>();
    if (fixed.empty()) return std::nullopt;
    return Warning{
        "does " + join_with_and(fixed) +
            " in training mode during validation too, as a model that was traced in that mode does",
        for_training
            ? "use torch.jit.script() instead of torch.jit.trace(), or a pair of files (model: {train: …, eval: …})"
            : "trace it in evaluation mode"};
  }

  // Writes the model in evaluation mode, which a program that loads it for inference expects.
  void save(const std::filesystem::path& path) const override {
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

  const char* extension() const override { return ".pt"; }

 private:
  std::filesystem::path file_;
  torch::jit::Module script_;
  std::shared_ptr<torch::jit::GraphFunction> short_forward_;  // without the last layer, if it is taken
  std::shared_ptr<ScriptTree> tree_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace

std::unique_ptr<FileModel> make_script_model(const std::filesystem::path& file) {
  return std::make_unique<ScriptModel>(file);
}

std::unique_ptr<FileModel> make_script_model(const std::filesystem::path& file, const FileModel& trained) {
  return std::make_unique<ScriptModel>(file, dynamic_cast<const ScriptModel&>(trained));
}

}  // namespace dtrain::worker
