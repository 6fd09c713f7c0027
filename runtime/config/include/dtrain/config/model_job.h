// The parts of a `model:` experiment, in the place of a program: a model file, the loss, the metrics, the optimizer and
// the data. dtrain-worker runs it. Plain values and their keys (those of the job itself are in experiment.h); the
// reader has checked types and ranges, but not whether files exist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/keys.h"
#include "dtrain/config/losses.h"
#include "dtrain/config/model_data.h"
#include "dtrain/config/optimizer.h"

namespace dtrain::config {

// Names of outputs and the factors of their losses, in the order of the file.
using AuxiliaryOutputs = std::vector<std::pair<std::string, double>>;

// `loss`: which loss, and which outputs of the model it gets.
struct LossSettings {
  Loss loss;
  // The output that the loss takes: a name, or a number from 0 on. Empty: forward() returns one tensor.
  std::string output;
  AuxiliaryOutputs auxiliary;
  bool operator==(const LossSettings&) const = default;
};

// A list of numbers, none of them negative.
void declare_numbers(Keys& keys, const Key& key, std::vector<double>& numbers);
void declare_auxiliary(Keys& keys, const Key& key, AuxiliaryOutputs& auxiliary);

inline void declare_keys(Keys& keys, LossSettings& s) {
  keys.one_of({.name = "kind",
               .text = "Which loss. A word in place of the mapping is the same as its kind alone.",
               .required = ""},
              s.loss);
  keys.text({.name = "output",
             .text = "Which output of the model the loss gets, if forward() returns a tuple or a dict: a name, or a "
                     "number from 0 on.",
             .examples = R"(["logits", 0])",
             .default_text = "none"},
            s.output);
  declare_auxiliary(keys,
                    {.name = "auxiliary",
                     .text = "Further outputs, by name or number, and factors: in training, the loss of each such "
                             "output, times its factor, is added to the loss.",
                     .examples = R"([{"aux_logits": 0.4}])"},
                    s.auxiliary);
}

// `metrics`, which validation computes beside the loss (runtime/train/worker/loss.h).
enum class MetricKind { kAccuracy, kTopAccuracy, kPerplexity, kF1, kIou, kAuc };

struct Metric {
  MetricKind kind = MetricKind::kAccuracy;
  std::string word;    // the name in the experiment and in metrics.jsonl
  std::int64_t k = 0;  // top_K_accuracy: K, at least 2
  bool operator==(const Metric&) const = default;
};

// Empty: there is no such metric.
std::optional<Metric> metric_named(const std::string& word);
// Returns the words of the losses from whose outputs the metric can be computed.
std::vector<std::string> losses_with(MetricKind kind);
// Returns the metrics of an experiment without `metrics`: accuracy, if the loss has it.
std::vector<Metric> default_metrics(const Loss& loss);

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

struct ModelFile {
  const char* key;  // "model", or of a pair "model.train" and "model.eval"
  std::filesystem::path path;
};
std::vector<ModelFile> files_of(const ModelJob& job);

}  // namespace dtrain::config
