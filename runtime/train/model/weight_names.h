// The names of the tensors in a file of another program, as the model has them: initial_weights.strip_prefix and
// rename.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/initial_weights.h"

namespace dtrain::train {

class WeightNames {
 public:
  explicit WeightNames(const config::InitialWeights& weights) : weights_(weights) {}

  std::string in_model(const std::string& name_in_file);
  // ConfigError if no name began with strip_prefix, or with one of rename's beginnings. `file` is one of the files that
  // were read.
  void check_used(const std::filesystem::path& file) const;

 private:
  const config::InitialWeights& weights_;
  bool stripped_ = false;
  std::vector<bool> renamed_ = std::vector<bool>(weights_.rename.size());
};

}  // namespace dtrain::train
