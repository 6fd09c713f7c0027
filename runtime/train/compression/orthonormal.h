// Orthonormal bases of many small sets of vectors, on any device. Launches operations on the current stream and waits
// for nothing. Called by one thread at a time, without gradients.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

namespace dtrain::train {

// Makes vectors orthonormal as comm/compression/codecs/power_sgd.cpp does, up to rounding: Gram-Schmidt in the order of
// the vectors, with a filler (comm::PowerSgd::filler()) in the place of a vector that is zero or in the span of the
// earlier ones. NaN or Inf in a set becomes NaN in all of it.
//
// A QR decomposition takes a long time for many rows and few columns. Here the long vectors are only multiplied, a
// batch of sets at a time. Gram-Schmidt itself works on the Gram matrices, for the sets of all batches at once, in
// float64.
class Orthonormal {
 public:
  // Each set has `count` vectors.
  Orthonormal(std::int64_t count, at::Device device);
  // Prepares for vectors of this length.
  void add_length(std::int64_t length);
  // Returns the bases of float32 batches [sets, count, length], each length of which has been added.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& batches) const;

 private:
  at::Tensor coefficients(const at::Tensor& gram) const;

  const std::int64_t count_;
  const at::TensorOptions options_;             // float64
  std::map<std::int64_t, at::Tensor> fillers_;  // of each length: [1, count, length]
};

}  // namespace dtrain::train
