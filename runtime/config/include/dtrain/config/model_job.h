// The parts of a `model:` experiment, in the place of a program: a model file, the loss, the optimizer and the data.
// dtrain-worker runs it. Plain values; the reader has checked types and ranges, but not whether files exist. The keys
// are declared in loss.h, metrics.h, optimizer.h, model_data.h and program_keys.h.
#pragma once

#include <filesystem>
#include <vector>

#include "dtrain/config/loss.h"
#include "dtrain/config/metrics.h"
#include "dtrain/config/model_data.h"
#include "dtrain/config/optimizer.h"

namespace dtrain::config {

struct ModelJob {
  // Resolved against the experiment file's folder.
  std::filesystem::path file;
  std::filesystem::path eval_file;  // of a pair: the file for validation. Empty: `file` is for both
  LossSettings loss;
  std::vector<Metric> metrics;  // each fits the loss
  OptimizerSettings optimizer;
  ModelData data;
  bool operator==(const ModelJob&) const = default;
};

// A file that `model` names.
struct ModelFile {
  const char* key;  // "model", or of a pair "model.train" and "model.eval"
  std::filesystem::path path;
};
std::vector<ModelFile> files_of(const ModelJob& job);

}  // namespace dtrain::config
