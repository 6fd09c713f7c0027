// add_layer_norm() and add_rms_norm() on CPUs against libtorch's operators.
#include "add_norms.h"

#include <functional>
#include <limits>

#include <gmock/gmock.h>

#include "dtrain/base/error.h"
#include "model/precision.h"

namespace dtrain::test {
namespace {

using testing::HasSubstr;

class AddNorm : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(31); }
};

TEST_F(AddNorm, IsTheSumAndItsNorm) {
  const std::vector<std::vector<std::int64_t>> all_sizes{{1}, {7}, {3, 5}, {9, 300}, {2, 3, 64}, {2, 2, 2, 33}};
  for (const auto& sizes : all_sizes) {
    for (const bool rms : {false, true}) {
      for (const bool bias : {true, false}) {
        if (rms && bias) continue;
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << (rms ? ", RMS" : "") << (bias ? ", bias" : ""));
        const AddNormInputs values = AddNormInputs::random(sizes, bias), exact = values.exact();
        const AddNormInputs narrow = values.to(at::kCPU, at::kFloat, at::kFloat);
        const AddNormResult expected = exact.unfused(rms), found = exact.norm(rms), single = narrow.norm(rms);
        expect_close(found.normalized, expected.normalized, 1e-12);
        expect_close(found.sum, expected.sum, 1e-12);
        EXPECT_EQ(single.normalized.scalar_type(), at::kFloat);
        expect_close(single.normalized, expected.normalized, 1e-4);
        const auto gradients = exact.gradients(expected);
        expect_close(exact.gradients(found), gradients, 1e-10);
        expect_close(narrow.gradients(single), gradients, 1e-2);
      }
    }
  }
}

TEST_F(AddNorm, InBfloat16) {
  const AddNormInputs values = AddNormInputs::random({4, 48});
  const AddNormInputs narrow = values.to(at::kCPU, at::kBFloat16, at::kBFloat16), exact = narrow.exact();
  for (const bool rms : {false, true}) {
    const AddNormResult found = narrow.norm(rms), expected = exact.norm(rms);
    EXPECT_EQ(found.normalized.scalar_type(), at::kBFloat16);
    EXPECT_EQ(found.sum.scalar_type(), at::kBFloat16);
    expect_close(found.normalized, expected.normalized, 0.05);
    expect_close(found.sum, expected.sum, 0.02);
  }
}

TEST_F(AddNorm, UnderAutocastTheNormalizedSumIsNarrow) {
  for (const bool rms : {false, true}) {
    const AddNormInputs values = AddNormInputs::random({4, 48}, !rms).to(at::kCPU, at::kFloat, at::kBFloat16);
    AddNormResult found;
    {
      const train::Autocast autocast(at::kBFloat16, at::kCPU);
      found = values.norm(rms);
    }
    EXPECT_EQ(found.normalized.scalar_type(), at::kBFloat16);
    EXPECT_EQ(found.sum.scalar_type(), at::kFloat);
    const AddNormInputs exact = values.exact();
    const AddNormResult expected = exact.norm(rms);
    expect_close(found.normalized, expected.normalized, 0.02);
    expect_close(values.gradients(found), exact.gradients(expected), 0.1);
  }
}

TEST_F(AddNorm, RmsNormsEpsIsFloat32s) {
  const AddNormInputs values = AddNormInputs::random({3, 8}, false).to(at::kCPU, at::kFloat, at::kFloat);
  const AddNormResult found = add_rms_norm(values.input * 1e-4, values.residual * 1e-4, values.weight);
  expect_close(found.normalized, at::rms_norm(found.sum, {8}, values.weight, std::numeric_limits<float>::epsilon()),
               1e-6);
}

std::string refusal_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(AddNorm, WhatDoesNotFitIsAnError) {
  const auto ones = [](at::IntArrayRef sizes) { return at::ones(sizes); };
  EXPECT_THAT(refusal_of([&] {
                add_layer_norm(ones({2, 3}), ones({2, 4}), ones({3}));
              }),
              HasSubstr("add_layer_norm: the input has the shape [2, 3], and the residual [2, 4]"));
  EXPECT_THAT(refusal_of([&] {
                add_layer_norm(ones({2, 3}), ones({2, 3}), ones({3}), ones({2}));
              }),
              HasSubstr("the weight [3], and the bias [2]"));
  EXPECT_THAT(refusal_of([&] {
                add_rms_norm(ones({2, 3}), ones({2, 3}), ones({2, 3}));
              }),
              HasSubstr("add_rms_norm: the input has the shape [2, 3], the weight [2, 3]"));
  EXPECT_THAT(refusal_of([&] { add_rms_norm(ones({2, 3}), ones({2, 3}), {}); }), HasSubstr("the weight none"));
  EXPECT_THAT(refusal_of([&] { add_rms_norm(ones({}), ones({}), ones({1})); }),
              HasSubstr("the input has the shape []"));
}

}  // namespace
}  // namespace dtrain::test
