// Data sets of every format with the same numbers in them, for tests that read them in many ways. Sample i of each has
// values of its own in every field, so that its bytes name it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

struct DataCase {
  std::string name;
  std::shared_ptr<Dataset> dataset;
};

// Writes the files into `folder`, and opens them.
std::vector<DataCase> data_cases(const std::filesystem::path& folder);

// `dataset`, which says that its samples lie in these blocks. Counts what it is told to read ahead.
class InBlocks final : public Dataset {
 public:
  InBlocks(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> blocks)
      : dataset_(std::move(dataset)), blocks_(std::move(blocks)) {}
  std::int64_t size() const override { return dataset_->size(); }
  const std::vector<Field>& fields() const override { return dataset_->fields(); }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    dataset_->read(samples, outputs);
  }
  std::unique_ptr<BatchBuilder> begin(const BatchPlace& place, std::int64_t samples,
                                      const BatchAllocator& allocate) const override {
    return dataset_->begin(place, samples, allocate);
  }
  Blocks blocks() const override { return {blocks_, 1}; }
  std::string where(std::int64_t sample) const override { return dataset_->where(sample); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<std::int64_t> blocks_;
};

}  // namespace dtrain::data
