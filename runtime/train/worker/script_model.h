// A TorchScript file as a model that dtrain trains in place. The file is checked on loading. Parameters and buffers
// have their names in Python, errors of forward() name the parameter or the method, and save() writes a file that
// Python's torch.jit.load reads. Two files may form one model: one is trained, and one for validation shares its
// parameters. Training thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include "worker/file_model.h"

namespace dtrain::worker {

// Mirrors the script's tree of modules. Parameters and buffers are the script's own tensors, so the script sees their
// changes by training (flat storage, gradients). Switching training mode switches the script.
class ScriptTree final : public torch::nn::Module {
 public:
  explicit ScriptTree(const torch::jit::Module& script);
  void train(bool on = true) override;
  // A script may assign a new tensor to a buffer (`self.mean = …`). Puts the registered tensor back in its place, with
  // the new tensor's values. Call it after backward (which may still need the old values), or after a forward without
  // gradients.
  void take_over_buffers();
  // Puts the registered tensors back without the new values: buffers are as before forward().
  void drop_assigned_buffers();

 private:
  struct BufferSlot {
    torch::jit::ObjectPtr owner;
    std::size_t slot;
    at::Tensor registered;
  };
  void collect_assigned(std::vector<std::pair<BufferSlot*, at::Tensor>>& assigned);

  torch::jit::Module script_;
  std::vector<BufferSlot> buffers_;
};

class ScriptModel final : public FileModel {
 public:
  // ConfigError: no such file, no TorchScript (and how to make one), no parameter that requires a gradient, tensors
  // that are not on the CPU.
  explicit ScriptModel(std::filesystem::path file);

  // A model for validation, described at load_eval_model().
  ScriptModel(std::filesystem::path file, const ScriptModel& trained);

  void check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) override;
  bool returns_one_tensor() const override;
  std::shared_ptr<torch::nn::Module> tree() const override { return tree_; }
  at::ScalarType dtype() const override { return dtype_; }
  // The Error also names the submodule that failed with its parameters' shapes.
  c10::IValue forward(const std::vector<at::Tensor>& inputs) override;
  at::Tensor output(const c10::IValue& returned, const OutputChoice& choice) const override {
    return chosen_output(returned, choice);
  }
  void checkpoint_modules(const std::string& patterns, const std::string& key) override;
  void take_over_buffers() override { tree_->take_over_buffers(); }
  void drop_assigned_buffers() override { tree_->drop_assigned_buffers(); }
  std::string why_not_repeatable() const override;
  std::optional<Warning> fixed_mode(bool for_training, bool for_evaluation) const override;
  // Writes the model in evaluation mode, which a program that loads it for inference expects.
  void save(const std::filesystem::path& path) const override;
  const char* extension() const override { return ".pt"; }

 private:
  std::filesystem::path file_;
  torch::jit::Module script_;
  std::shared_ptr<ScriptTree> tree_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace dtrain::worker
