// A file of torch.export (`.pt2`) as a model that ModelTrial trains. Matches the tensors of the data to the names of
// the program's inputs and outputs. Training thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "exported/exported_model.h"
#include "worker/file_model.h"

namespace dtrain::worker {

class ExportedFile final : public FileModel {
 public:
  // ConfigError: those of exported::ExportedModel.
  explicit ExportedFile(const std::filesystem::path& file);
  ExportedFile(const std::filesystem::path& file, const ExportedFile& trained);

  std::shared_ptr<torch::nn::Module> tree() const override { return model_.tree(); }
  at::ScalarType dtype() const override { return dtype_; }
  at::ScalarType features_type() const override;
  void check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) override;
  bool returns_one_tensor() const override;
  void check_samples(std::int64_t samples, const std::string& which) const override;
  c10::IValue forward(const std::vector<at::Tensor>& inputs) override;
  at::Tensor output(const c10::IValue& returned, const OutputChoice& choice) const override;
  void checkpoint_modules(const std::string& patterns, const std::string& key) override;
  std::string why_not_repeatable() const override { return model_.why_not_repeatable(); }
  std::optional<Warning> fixed_mode(bool for_training, bool for_evaluation) const override;
  std::optional<Warning> suspected_backward() const override;
  void check_evaluation() const override;
  void save(const std::filesystem::path& path) const override { model_.save(path); }
  const char* extension() const override { return ".pt2"; }

 private:
  std::size_t index_of(const OutputChoice& choice) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const;

  exported::ExportedModel model_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<std::size_t> order_;  // for each input of the program, its index in the inputs of forward()
};

}  // namespace dtrain::worker
