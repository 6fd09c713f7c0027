// A TorchScript file as a model that dtrain trains in place: the file checked when it is loaded, its parameters and
// buffers under the names they have in Python, forward() with errors that name the parameter or the method, and the
// way back into a file that Python's torch.jit.load reads. Two files may be one model: one that is trained, and one for
// validation that has the same parameters. Used by the training thread alone.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include "outputs.h"

namespace dtrain::worker {

// Mirrors the script's tree of modules. Parameters and buffers are registered as the very tensors of the script: what
// training does to them (flat storage, gradients) the script sees. Switching training mode switches the script.
class ScriptTree final : public torch::nn::Module {
 public:
  explicit ScriptTree(const torch::jit::Module& script);
  void train(bool on = true) override;
  // A script may assign a new tensor to a buffer (`self.mean = …`). Puts the registered tensor back in its place, with
  // the new tensor's values. Call it after backward (which may still need the old values), or after a forward without
  // gradients.
  void take_over_buffers();
  // The same without the values: the buffers are as they were before forward().
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

class ScriptModel {
 public:
  // ConfigError: no such file, no TorchScript (and how to make one), no parameter that requires a gradient, tensors
  // that are not on the CPU.
  explicit ScriptModel(std::filesystem::path file);

  // A model for validation, always in evaluation mode: computes with the parameters and buffers of `trained`, whatever
  // training does to them. What its own file says of their values does not count. ConfigError as above, but nothing has
  // to require a gradient; also if `trained` has no tensor of a name, or one of another shape or type, or if the file
  // has none of the parameters that are trained.
  ScriptModel(std::filesystem::path file, const ScriptModel& trained);

  // ConfigError if forward() does not take these inputs, or cannot return these outputs.
  void check_signature(const std::vector<std::string>& inputs, const std::vector<OutputChoice>& outputs) const;

  // Whether forward() returns a tensor, and no tuple or dict of them.
  bool returns_one_tensor() const;

  const std::shared_ptr<ScriptTree>& tree() const { return tree_; }
  // Of the parameters; that of the first one where they differ.
  at::ScalarType dtype() const { return dtype_; }
  const torch::jit::Module& script() const { return script_; }
  // Error naming the shapes and types of `inputs`, whose first are the features, and the submodule that failed with its
  // parameters' shapes.
  torch::jit::IValue forward(const std::vector<at::Tensor>& inputs);
  // Atomic. In evaluation mode, which is what one who loads it for use expects.
  void save(const std::filesystem::path& path) const;

 private:
  std::filesystem::path file_;
  torch::jit::Module script_;
  std::shared_ptr<ScriptTree> tree_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace dtrain::worker
