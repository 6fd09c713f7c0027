// Compressors whose results and state tests compare.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "compression/tensor_compressor.h"
#include "state_visitor.h"

namespace dtrain::train {

class CopyState final : public StateVisitor {
 public:
  std::map<std::string, at::Tensor> values;
  bool replaces() const override { return false; }

 protected:
  void on_tensor(const std::string& path, at::Tensor value) override { values[path] = value.clone(); }
  void on_number(const std::string& path, std::int64_t&) override { ADD_FAILURE() << path; }
  void on_real(const std::string& path, double&) override { ADD_FAILURE() << path; }
  void on_reals(const std::string& path, std::vector<float>& reals) override { values[path] = torch::tensor(reals); }
  void on_text(const std::string& path, std::string&) override { ADD_FAILURE() << path; }
};

class PutState final : public StateVisitor {
 public:
  explicit PutState(std::map<std::string, at::Tensor> values) : values_(std::move(values)) {}
  bool replaces() const override { return true; }

 protected:
  void on_tensor(const std::string& path, at::Tensor value) override { value.copy_(values_.at(path)); }
  void on_number(const std::string& path, std::int64_t&) override { ADD_FAILURE() << path; }
  void on_real(const std::string& path, double&) override { ADD_FAILURE() << path; }
  void on_reals(const std::string& path, std::vector<float>& reals) override {
    const at::Tensor& value = values_.at(path);
    reals.assign(value.data_ptr<float>(), value.data_ptr<float>() + value.numel());
  }
  void on_text(const std::string& path, std::string&) override { ADD_FAILURE() << path; }

 private:
  const std::map<std::string, at::Tensor> values_;
};

// NaN equals NaN.
inline bool same_values(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.eq(b).logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
}

// A compressor over memory of its own.
struct Side {
  // `tensors`: in tensor operations, on CPUs, too.
  Side(bool tensors, const FlatParameters& parameters, comm::Communicator& communicator,
       const CompressorOptions& options) {
    for (const auto& group : parameters.groups()) flats.push_back(at::zeros_like(group.gradients));
    if (tensors) {
      compressor = std::make_unique<TensorCompressor>(parameters, flats, communicator, options);
    } else {
      compressor = make_bucket_compressor(parameters, flats, communicator, options);
    }
  }
  std::map<std::string, at::Tensor> state() {
    CopyState copy;
    compressor->visit(copy);
    return std::move(copy.values);
  }

  std::vector<at::Tensor> flats;
  std::unique_ptr<BucketCompressor> compressor;
};

// Exchanges all buckets of the plan, and ends the step. `unused`: the parameters whose results are not applied.
inline void exchange_all(Side& side, const comm::FusionPlan& plan, double scale,
                         const std::vector<std::size_t>& unused = {}) {
  std::vector<comm::Work> works;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) works.push_back(side.compressor->exchange(plan, b, scale));
  for (comm::Work& work : works) work.join();
  for (const std::size_t parameter : unused) side.compressor->not_applied(parameter);
  side.compressor->end_step();
}

// Returns the norm of the difference as a part of the norm of `expected`. Infinite unless the same values are not
// finite.
inline double relative_difference(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor finite = expected.isfinite();
  if (got.sizes() != expected.sizes() || !torch::equal(got.isfinite(), finite)) {
    return std::numeric_limits<double>::infinity();
  }
  const at::Tensor a = got.masked_select(finite).to(at::kDouble), b = expected.masked_select(finite).to(at::kDouble);
  const double difference = (a - b).norm().item<double>(), size = b.norm().item<double>();
  return difference == 0 ? 0 : difference / size;
}

}  // namespace dtrain::train
