// Batches of a file, so that PyTorch can train on the same ones.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <dtrain/dtrain.h>

#include "model/weights.h"

namespace dtrain::test {

// The file is a safetensors one: tensors [batches, ranks, samples, …], and counts [ranks], the number of batches that
// each rank has in an epoch. ConfigError when it is for another number of ranks.
class FileBatches final : public BatchSource {
 public:
  // `names`: of the tensors that make a batch. `tells_length`: whether the length of an epoch is known beforehand.
  FileBatches(const std::filesystem::path& file, std::vector<std::string> names, int rank, int world_size,
              bool tells_length = true)
      : tensors_(train::read_safetensors(file)), names_(std::move(names)), rank_(rank), tells_length_(tells_length) {
    const auto ranks = tensors_.at(names_.front()).size(1);
    if (ranks != world_size) throw ConfigError(file.string() + " has batches for " + std::to_string(ranks) + " ranks");
    count_ = tensors_.at("counts")[rank].item<std::int64_t>();
  }

  void start_epoch(std::int64_t) override { next_ = 0; }
  std::optional<Batch> next() override {
    if (next_ == count_) return std::nullopt;
    Batch batch{names_, {}, 0};
    for (const auto& name : names_) batch.tensors.push_back(tensors_.at(name)[next_][rank_].clone());
    batch.samples = batch.tensors[0].size(0);
    ++next_;
    return batch;
  }
  std::optional<std::int64_t> batches_per_epoch() const override {
    if (!tells_length_) return std::nullopt;
    return count_;
  }

 private:
  std::map<std::string, torch::Tensor> tensors_;
  std::vector<std::string> names_;
  std::int64_t rank_ = 0, count_ = 0, next_ = 0;
  bool tells_length_;
};

}  // namespace dtrain::test
