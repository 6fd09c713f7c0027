// A file of torch.export (`.pt2`) as a model that is trained in place: a tree of modules has the parameters and buffers
// under their names in Python, and the runner computes forward(). Training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "exported/archive.h"
#include "exported/program.h"
#include "exported/runner.h"
#include "model/model_tensors.h"

namespace dtrain::exported {

// Mirrors the modules that the model had in Python, with the names of their classes, by which training finds layers
// that stay in float32. Has no forward().
class ExportedTree final : public torch::nn::Module, public train::LeavesTensorsOut {
 public:
  explicit ExportedTree(const std::string& class_name) : torch::nn::Module(class_name) {}
  const std::set<std::string>& left_out() const override { return left_out_; }
  void leave_out(const std::string& own) { left_out_.insert(own); }

 private:
  std::set<std::string> left_out_;
};

class ExportedModel {
 public:
  // ConfigError: those of Archive, read_program() and read_tensors(); or no parameter requires a gradient.
  explicit ExportedModel(const std::filesystem::path& file);

  // A model for validation that computes with the parameters and buffers of `trained`, so every change by training
  // applies to it; the values in its own file are ignored. ConfigError as above, but no tensor has to require a
  // gradient; also if `trained` lacks a tensor or has one of another shape or type, or if the file has none of the
  // parameters that are trained. `trained_file`: for errors.
  ExportedModel(const std::filesystem::path& file, const torch::nn::Module& trained,
                const std::filesystem::path& trained_file);

  // In training, `run` computes these modules again in backward (checkpointed_parts()). ConfigError begins with
  // `key`. Called before the first forward().
  void checkpoint_modules(const std::string& patterns, const std::string& key, RunCheckpointed run);

  const std::shared_ptr<torch::nn::Module>& tree() const { return tree_; }
  const Program& program() const { return program_; }
  const Archive& archive() const { return archive_; }

  // `inputs`: in the order of program().inputs, on the device of the parameters. Returns program().outputs in their
  // order; undefined: no tensor. Computes in the mode of tree(). Error names an input whose shape the program was not
  // exported for, or the operator and module that failed.
  std::vector<at::Tensor> forward(std::span<const at::Tensor> inputs);

  // The linear layer [classes, features] that makes an output.
  struct TakenLayer {
    std::string name;         // of the weight: "head.weight"
    at::Tensor weight, bias;  // undefined bias: none
    std::string why_not;      // the continuation of "because"; empty: the layer is taken
  };
  // Takes the layer off if its result has no other use and it has at least `least_classes` classes: from then on
  // forward() returns the layer's input in the output's place. Called after checkpoint_modules().
  TakenLayer take_last_layer(std::size_t output, std::int64_t least_classes);

  // Throws an Error if the program was not exported for batches of this number of samples.
  void check_samples(std::int64_t samples) const { shapes_.check_samples(samples); }

  // Writes the program with its present weights, atomically. Python's torch.export.load() reads the file.
  void save(const std::filesystem::path& path) const;

  // Returns why a CUDA graph cannot repeat forward(), as the continuation of "because"; empty: a graph can.
  std::string why_not_repeatable() const;

 private:
  using Tensors = std::map<std::string, at::Tensor>;

  std::vector<at::Tensor> own_tensors();
  std::vector<at::Tensor> tensors_of(const torch::nn::Module& trained, const std::filesystem::path& trained_file);
  void make_tree(const std::vector<at::Tensor>& stored);
  ExportedTree& module_at(const std::string& path);
  [[noreturn]] void fail(std::span<const at::Tensor> inputs, const std::exception& error) const;

  Archive archive_;
  const Program program_;
  std::shared_ptr<torch::nn::Module> tree_;
  std::unique_ptr<Runner> runner_;
  ShapeCheck shapes_;
  bool on_device_ = false;  // true once the runner is on the device
};

}  // namespace dtrain::exported
