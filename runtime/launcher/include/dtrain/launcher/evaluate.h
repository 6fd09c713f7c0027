// `dtrain evaluate` and `dtrain predict`: the metrics of the validation, or the model's outputs for its data, with the
// weights of a checkpoint or a file, without a run of their own. One thread.
//
// Launches the experiment with `--evaluate` or `--predict` in a folder that is removed afterwards. The ranks load the
// checkpoint with its training state, so that averaged weights, the order in memory of weights, and the random numbers
// of the validation are those of the run: on as many ranks as it had, the metrics have the same bits as its own
// validation. A prediction has the same bytes on any number of ranks: each of its batches is computed by one rank, with
// one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::launcher {

struct EvaluateRequest {
  std::filesystem::path experiment_file;
  std::filesystem::path contents;      // read instead of experiment_file; empty: that file itself
  std::vector<std::string> overrides;  // --set
  std::filesystem::path cluster;       // as for a launch; empty: looked for
  std::filesystem::path weights;       // the folder of a checkpoint, or a file of weights
  bool is_checkpoint = false;
  std::optional<int> slots;           // the number of ranks; empty: the experiment's
  std::filesystem::path predictions;  // the file for outputs; empty: metrics are computed
  // Samples of a batch of the prediction, on any number of ranks; empty: those of a slot of the experiment.
  std::optional<std::int64_t> batch_size;
  std::filesystem::path scratch;  // where the folder is made; empty: among the temporary files
};

struct Evaluation {
  std::filesystem::path weights;
  std::optional<std::int64_t> batch, epoch;  // of the checkpoint; the epoch from 0
  std::optional<double> ema;                 // the factor of the averaged weights that were used
  std::int64_t samples = 0;                  // of the validation data, over all ranks
  int ranks = 0;
  Json metrics;                // name: number, or the text of one that is not finite; null: predicted
  std::filesystem::path file;  // of the outputs; empty: evaluated
  Json shape;                  // of the outputs
};

// Empty: a signal has stopped it. ConfigError: the experiment or the weights are refused; Error: a rank failed. Both
// have the last output of the ranks, and the folder with their logs then stays.
std::optional<Evaluation> evaluate(const EvaluateRequest& request);

Json to_json(const Evaluation& evaluation);
std::string evaluation_text(const Evaluation& evaluation);

}  // namespace dtrain::launcher
