// Cross entropy of a model's file with a large last layer: the layer is taken off the model, and the loss computes it
// in chunks (linear_cross_entropy()) where the scores of a batch are large. Where they are small, or a metric needs
// them, the layer is computed as a whole, with the bits that the model would have. What is done depends on the
// experiment, the file and the shapes of the batch alone. Training thread.
#pragma once

#include <string>

#include "dtrain/rank/rank_session.h"
#include "worker/file_model.h"
#include "worker/loss.h"

namespace dtrain::worker {

class ChunkedLoss {
 public:
  // Takes the last layer off `model`, which makes the output, if that is possible and worth it. Rank 0 writes to
  // plan.json what is done, or why not. All arguments but `output` outlive this object.
  ChunkedLoss(const config::ModelJob& job, const OutputChoice& output, FileModel& model, rank::RankSession& session);

  // True if the layer is taken off: the model returns hidden states.
  bool has_layer() const { return layer_.weight.defined(); }

  // Returns the loss and accuracy of a batch. `input.output`: the hidden states. Afterwards it is the scores, or, if
  // the loss was computed in chunks, a tensor of their shape without memory (at::kMeta), which `needs_scores` excludes.
  LossValues evaluate(LossInput& input, bool needs_scores);

  // Returns the scores of hidden states, with the bits that the whole model would give.
  at::Tensor scores(const at::Tensor& hidden) const;

 private:
  std::string why_not(const config::ModelJob& job) const;
  void report(bool used, const std::string& text, Json more = Json::object());
  void report_first(const at::Tensor& hidden, bool in_chunks);

  const config::Loss& loss_;
  rank::RankSession& session_;
  LastLayer layer_;
  bool is_reported_ = false;
};

}  // namespace dtrain::worker
