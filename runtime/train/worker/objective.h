// What a model's output is compared with: loss and accuracy of one batch, and errors where output and target do not fit
// together. Plain functions of tensors; any thread may call them.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/config/model_job.h"
#include "dtrain/train/metrics.h"

namespace dtrain::worker {

class Objective {
 public:
  // `sequences`: a target for each position of a sample, scores as [batch, positions, classes] (the tokens format).
  Objective(config::Loss loss, bool sequences) : loss_(loss), sequences_(sequences) {}

  // "loss", the mean over the batch, and for cross_entropy "accuracy". Error naming both shapes when they do not fit;
  // DataError for a class that is none.
  struct Result {
    at::Tensor loss;
    at::Tensor accuracy;  // undefined for mse
    Metrics metrics() const;
  };
  Result evaluate(const at::Tensor& output, const at::Tensor& target) const;

 private:
  Result cross_entropy(at::Tensor output, at::Tensor target) const;
  Result mse(const at::Tensor& output, at::Tensor target) const;

  config::Loss loss_;
  bool sequences_;
};

}  // namespace dtrain::worker
