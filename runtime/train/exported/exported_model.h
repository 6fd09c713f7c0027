// A file of torch.export (`.pt2`) as a model that is trained in place: its parameters and buffers under the names they
// have in Python, in a tree of modules, and forward() by the runner. Training thread.
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
#include "exported/shape_check.h"
#include "model/tensors_left_out.h"

namespace dtrain::exported {

// Mirrors the modules that the model had in Python, with the names of their classes: by them training tells layers that
// stay in float32. It has no forward() of its own.
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
  // ConfigError: as Archive, read_program() and read_tensors(); no parameter that requires a gradient.
  explicit ExportedModel(const std::filesystem::path& file);

  // A model for validation that computes with the parameters and buffers of `trained`, whatever training does to them.
  // What its file says of their values does not count. ConfigError as above, but nothing has to require a gradient;
  // also if `trained` has no tensor of a name, or one of another shape or type, or if the file has none of the
  // parameters that are trained. `trained_file`: for errors.
  ExportedModel(const std::filesystem::path& file, const torch::nn::Module& trained,
                const std::filesystem::path& trained_file);

  // In training these modules are computed again in backward, by `run` (checkpointed_modules.h). ConfigError begins
  // with `key`. Before the first forward().
  void checkpoint_modules(const std::string& patterns, const std::string& key, RunCheckpointed run);

  const std::shared_ptr<torch::nn::Module>& tree() const { return tree_; }
  const Program& program() const { return program_; }
  const Archive& archive() const { return archive_; }

  // `inputs`: in the order of program().inputs, on the device of the parameters. Returns program().outputs in their
  // order; undefined: no tensor. In the mode of tree(). Error names an input of a shape that the program was not
  // exported for, or the operator and module that failed.
  std::vector<at::Tensor> forward(std::span<const at::Tensor> inputs);

  // Error: the program was not exported for batches of so many samples.
  void check_samples(std::int64_t samples) const { shapes_.check_samples(samples); }

  // Atomic: the same program with the weights as they are, which Python's torch.export.load() reads.
  void save(const std::filesystem::path& path) const;

  // Why a CUDA graph cannot repeat forward(), as the continuation of "because"; empty: it can.
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
  bool on_device_ = false;  // the runner has been moved there
};

}  // namespace dtrain::exported
