// A model from a file, as ModelTrial trains it: TorchScript (script_model.h) or a program of torch.export
// (exported_file.h). Training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "outputs.h"

namespace dtrain::worker {

// What forward() is given.
struct ModelInput {
  std::string described;  // for errors: "the features", "'mask'"
  std::string name;       // of its tensor in the data; empty: the data has no names
};

class FileModel {
 public:
  virtual ~FileModel() = default;

  // Parameters and buffers under the names they have in Python; its mode is the model's.
  virtual std::shared_ptr<torch::nn::Module> tree() const = 0;
  // Of the parameters; that of the first one where they differ.
  virtual at::ScalarType dtype() const = 0;
  // The type that forward() takes its first input in. Whole numbers are given as they are in the data.
  virtual at::ScalarType features_type() const { return dtype(); }

  // ConfigError if forward() does not take these inputs, or cannot return these outputs. Before the first forward().
  virtual void check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) = 0;
  // Whether forward() returns a tensor, and no tuple or dict of them.
  virtual bool returns_one_tensor() const = 0;

  // ConfigError if the model does not take batches of so many samples; it begins with `which`, which says whose they
  // are.
  virtual void check_samples(std::int64_t /*samples*/, const std::string& /*which*/) const {}

  // Of inputs in the order of check_signature(), whose first are the features. Error naming their shapes, and the part
  // of the model that failed.
  virtual c10::IValue forward(const std::vector<at::Tensor>& inputs) = 0;
  // Of what forward() has returned. Error if it is no tensor.
  virtual at::Tensor output(const c10::IValue& returned, const OutputChoice& choice) const = 0;

  // In training the modules whose names match these patterns (as in optimizer.groups.match) keep only their inputs and
  // are computed again in backward. Before the first forward(). ConfigError begins with `key`: no module matches, or
  // the file does not say which operators belong to which module.
  virtual void checkpoint_modules(const std::string& patterns, const std::string& key) = 0;

  // A model may assign a new tensor to a buffer. Puts the registered tensor back in its place, with the new tensor's
  // values. After backward (which may still need the old values), or after a forward without gradients.
  virtual void take_over_buffers() {}
  // The same without the values: the buffers are as they were before forward().
  virtual void drop_assigned_buffers() {}

  // Why a CUDA graph cannot repeat forward(), as the continuation of "because"; empty: it can.
  virtual std::string why_not_repeatable() const = 0;

  // A warning that a mode is fixed in the file; empty: there is none. `for_training`: as the file that is trained.
  struct Warning {
    std::string what;
    std::string remedy;
  };
  virtual std::optional<Warning> fixed_mode(bool for_training, bool for_evaluation) const = 0;
  // A warning that the gradient may not be the author's; empty: there is none.
  virtual std::optional<Warning> suspected_backward() const { return std::nullopt; }
  // ConfigError if the file says only how the model trains, and not how it is evaluated.
  virtual void check_evaluation() const {}

  // Atomic. In a form that Python reads, with the weights as they are.
  virtual void save(const std::filesystem::path& path) const = 0;
  // ".pt", ".pt2"
  virtual const char* extension() const = 0;
};

// ConfigError: as ScriptModel and ExportedFile.
std::unique_ptr<FileModel> load_model(const std::filesystem::path& file);

// A model for validation, always in evaluation mode: computes with the parameters and buffers of `trained`, whatever
// training does to them. What its own file says of their values does not count. ConfigError as above, but nothing has
// to require a gradient; also if `trained` has no tensor of a name, or one of another shape or type, or if the file
// has none of the parameters that are trained, or is of another kind.
std::unique_ptr<FileModel> load_eval_model(const std::filesystem::path& file, const FileModel& trained);

}  // namespace dtrain::worker
