// A model from a file, which ModelTrial trains: TorchScript (script_model.cpp) or a program of torch.export
// (file_model.cpp). Training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>

#include "dtrain/train/trial.h"
#include "worker/loss.h"

namespace dtrain::worker {

// An output that the experiment names, by `loss.output` or in `loss.auxiliary`.
struct OutputChoice {
  std::string key;   // for errors: "loss.output"
  std::string name;  // name in a named tuple or a dict, or number of a tuple's element. Empty: the only tensor
};

// Returns the number of a tuple's element that the output's name means; empty: it has none.
std::optional<std::size_t> element_of(const c10::TupleType& type, const std::string& name);

// ConfigError if no value of type `returned` has the output. Some types, such as dicts, do not tell.
void check_choice(const c10::TypePtr& returned, const OutputChoice& choice, const std::string& file);

// Error if forward() has returned no such tensor.
at::Tensor chosen_output(const c10::IValue& returned, const OutputChoice& choice);

// An input of forward().
struct ModelInput {
  std::string described;  // for errors: "the features", "'mask'"
  std::string name;       // name of its tensor in the data; empty: the data has no names
};

class FileModel {
 public:
  virtual ~FileModel() = default;

  // The parameters and buffers under their names in Python. Its mode is the model's mode.
  virtual std::shared_ptr<torch::nn::Module> tree() const = 0;
  // The type of the first parameter that requires a gradient.
  virtual at::ScalarType dtype() const = 0;
  // The type of the first input of forward(). Integer features are passed as they are in the data.
  virtual at::ScalarType features_type() const { return dtype(); }

  // ConfigError if forward() does not take these inputs or cannot return these outputs. Called before forward().
  virtual void check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) = 0;
  // True if forward() returns one tensor, not a tuple or dict.
  virtual bool returns_one_tensor() const = 0;

  // ConfigError if the model does not take batches of this number of samples. The error begins with `which`, a
  // description of the batches.
  virtual void check_samples(std::int64_t /*samples*/, const std::string& /*which*/) const {}

  // Computes the model. `inputs`: in the order of check_signature(), the features first. Error names the inputs' shapes
  // and the part of the model that failed.
  virtual c10::IValue forward(const std::vector<at::Tensor>& inputs) = 0;
  // Returns the chosen output of `returned`, the result of forward(). Error if the output is no tensor.
  virtual at::Tensor output(const c10::IValue& returned, const OutputChoice& choice) const = 0;

  // The linear layer that makes an output.
  struct TakenLayer {
    LastLayer layer;
    std::string why_not;  // the continuation of "because"; empty: the layer is taken
  };
  // Takes the layer off if its result has no other use and it has at least `least_classes` classes: from then on
  // forward() returns the layer's input in the output's place, in both modes. save() writes the whole model all the
  // same. Called after check_signature() and checkpoint_modules().
  virtual TakenLayer take_last_layer(const OutputChoice& output, std::int64_t least_classes) = 0;

  // In training, the modules whose names match these patterns (as in optimizer.groups.match) keep only their inputs and
  // are computed again in backward. Called before the first forward(). ConfigError begins with `key`: no module
  // matches, or the file does not say which operators belong to which module.
  virtual void checkpoint_modules(const std::string& patterns, const std::string& key) = 0;

  // A model may assign a new tensor to a buffer. Puts the registered tensor back in its place, with the new tensor's
  // values. Called after backward (which may still need the old values), or after a forward without gradients.
  virtual void take_over_buffers() {}
  // Puts the registered tensors back without the new values: buffers are as before forward().
  virtual void drop_assigned_buffers() {}

  // Returns why a CUDA graph cannot repeat forward(), as the continuation of "because"; empty: a graph can.
  virtual std::string why_not_repeatable() const = 0;

  // Returns a warning if the file fixes a mode, otherwise empty. `for_training`: the file is used in training.
  struct Warning {
    std::string what;
    std::string remedy;
  };
  virtual std::optional<Warning> fixed_mode(bool for_training, bool for_evaluation) const = 0;
  // Returns a warning if the author's backward code may be lost; otherwise empty.
  virtual std::optional<Warning> suspected_backward() const { return std::nullopt; }
  // ConfigError if the file defines the model in training alone, not in evaluation.
  virtual void check_evaluation() const {}

  // Writes the model with its present weights, atomically, in a form that Python reads.
  virtual void save(const std::filesystem::path& path) const = 0;
  // The extension of the model's files: ".pt", ".pt2".
  virtual const char* extension() const = 0;
};

// Returns the type of the first parameter that requires a gradient.
at::ScalarType trained_type(const torch::nn::Module& model);

// ConfigError: those of ScriptModel and ExportedFile.
std::unique_ptr<FileModel> load_model(const std::filesystem::path& file);

// Loads a model for validation, always in evaluation mode, which computes with the parameters and buffers of `trained`
// so every change by training applies to it; the values in its own file are ignored. ConfigError as above, but no
// tensor has to require a gradient; also if `trained` lacks a tensor or has one of another shape or type, or if the
// file has none of the parameters that are trained, or is of another kind.
std::unique_ptr<FileModel> load_eval_model(const std::filesystem::path& file, const FileModel& trained);

// The same for files of TorchScript.
std::unique_ptr<FileModel> make_script_model(const std::filesystem::path& file);
std::unique_ptr<FileModel> make_script_model(const std::filesystem::path& file, const FileModel& trained);

// Returns the trial of a `model:` experiment. ConfigError: those of load_model(), and keys that do not fit the model.
std::unique_ptr<Trial> make_model_trial(TrialContext& context);

}  // namespace dtrain::worker
