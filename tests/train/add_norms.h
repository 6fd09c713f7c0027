// Inputs of add_layer_norm() and add_rms_norm() for tests, and their results and gradients.
#pragma once

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtrain/train/add_norm.h"

namespace dtrain::test {

constexpr double kEps = 1e-3;

// Leaves. A bias that is undefined: none.
struct AddNormInputs {
  at::Tensor input, residual, weight, bias;

  static AddNormInputs random(at::IntArrayRef sizes, bool bias = true) {
    const auto values = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble) + 0.5; };
    return {values(sizes), values(sizes), values({sizes.back()}), bias ? values({sizes.back()}) : at::Tensor()};
  }
  // `narrow` is the type of the input.
  AddNormInputs to(at::Device device, at::ScalarType wide, at::ScalarType narrow) const {
    const auto copy = [&](const at::Tensor& tensor, at::ScalarType type) {
      return tensor.defined() ? tensor.detach().to(device, type, false, true).requires_grad_() : tensor;
    };
    return {copy(input, narrow), copy(residual, wide), copy(weight, wide), copy(bias, wide)};
  }
  // In float64 on the CPU.
  AddNormInputs exact() const { return to(at::kCPU, at::kDouble, at::kDouble); }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{input, residual, weight};
    if (bias.defined()) all.push_back(bias);
    return all;
  }

  AddNormResult norm(bool rms) const {
    return rms ? add_rms_norm(input, residual, weight, kEps) : add_layer_norm(input, residual, weight, bias, kEps);
  }
  // libtorch's operators, one by one.
  AddNormResult unfused(bool rms) const {
    const at::Tensor sum = residual + input;
    if (rms) return {at::rms_norm(sum, weight.sizes(), weight, kEps), sum};
    return {at::layer_norm(sum, weight.sizes(), weight, bias, kEps), sum};
  }
  // Of a loss in which each element of both results has a factor of its own.
  std::vector<at::Tensor> gradients(const AddNormResult& result, bool create_graph = false) const {
    const auto factors = [](const at::Tensor& of, int step) {
      return at::arange(of.numel(), at::kLong).remainder(step).sub(4).view(of.sizes()).to(of.device(), at::kDouble);
    };
    const auto weighted = [&](const at::Tensor& of, int step) {
      return of.to(at::kDouble).mul(factors(of, step)).sum();
    };
    return torch::autograd::grad({weighted(result.normalized, 13) + weighted(result.sum, 11)}, leaves(), {}, {},
                                 create_graph);
  }
};

inline void expect_close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  EXPECT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(
      at::allclose(found.detach().cpu().to(at::kDouble), expected.detach().cpu().to(at::kDouble), tolerance, tolerance))
      << found << "\ninstead of\n"
      << expected;
}

inline void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                         double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "gradient " << i);
    expect_close(found[i], expected[i], tolerance);
  }
}

}  // namespace dtrain::test
