// Whichever gradients travel together, every codec gives the same bits; and the smallest gradients arrive.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "dtrain/comm/compression.h"
#include "flat_gradients.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::fill;
using test::kShapes;
using test::Model;
using test::values;

CompressionOptions options_for(const Compression& codec) {
  CompressionOptions options;
  options.codec = codec_maker(codec);
  options.compared_steps = 1;
  return options;
}

struct PlanCase {
  std::string backend;
  int ranks;
  int batches;
  Compression codec;
};

class Plans : public testing::TestWithParam<PlanCase> {};

TEST_P(Plans, EveryOneGivesTheSameBits) {
  const PlanCase& one = GetParam();
  test::run_communicator_ranks(test::TestWorld(one.ranks), one.backend, [&](Communicator& comm) {
    constexpr int kSteps = 8;
    // Buckets of each step: all in one, two, each gradient by itself, and cut anew in every step.
    const std::vector<std::function<std::size_t(int)>> plans = {
        [](int) { return std::size_t{1}; }, [](int) { return std::size_t{2}; }, [](int) { return kShapes.size(); },
        [](int step) { return 1 + static_cast<std::size_t>(step * 5) % kShapes.size(); }};
    std::vector<std::vector<float>> first;
    for (std::size_t p = 0; p < plans.size(); ++p) {
      Model model(comm, kShapes, one.batches);
      GradientCompressor compressor(options_for(one.codec), model.tensors, comm);
      for (int step = 0; step < kSteps; ++step) {
        fill(model, comm.rank(), step);
        for (float& v : model.of(0)) v *= 1e-8f;  // a matrix and a vector that float16 cannot hold
        for (float& v : model.of(1)) v *= 3e-7f;
        model.exchange(compressor, plans[p](step), step % 2 == 1);
        const auto got = values(model);
        if (p == 0) {
          first.push_back(got);
          continue;
        }
        const auto& want = first[static_cast<std::size_t>(step)];
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < got.size(); ++i) wrong += std::memcmp(&got[i], &want[i], sizeof(float)) != 0;
        ASSERT_EQ(wrong, 0u) << "plan " << p << ", step " << step;
      }
    }
  });
}

std::vector<PlanCase> plan_cases() {
  std::vector<PlanCase> all;
  const std::vector<Compression> codecs{
      NoCompression(), Fp16(), Bf16(), Int8(), PowerSgd{.rank = 4, .warmup_steps = 0}, TopK{.ratio = 0.05}};
  for (const Compression& codec : codecs) {
    all.push_back({"thread", 2, 1, codec});
    all.push_back({"thread", 2, 3, codec});
    all.push_back({"thread", 3, 1, codec});
    all.push_back({"shm", 3, 5, codec});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Plans, testing::ValuesIn(plan_cases()), [](const auto& info) {
  return info.param.backend + std::to_string(info.param.ranks) + "x" + std::to_string(info.param.batches) +
         (*word_of(info.param.codec) ? word_of(info.param.codec) : "none");
});

void on_three(const std::function<void(Communicator&)>& fn) {
  test::run_communicator_ranks(test::TestWorld(3), "thread", fn);
}

// Of every second value 4e-8 on all ranks, which float16 rounds to zero, between values that it holds.
void fill_small_ones(Model& model, int step) {
  for (std::size_t i = 0; i < model.of(0).size(); ++i) {
    model.of(0)[i] = i % 2 == 0 ? 4e-8f : static_cast<float>(1 + step % 7);
  }
  for (float& v : model.of(1)) v = -4e-8f;
  for (float& v : model.of(2)) v = 0.25f;
}

const std::vector<test::Shape> kThree = {{40, 30}, {517, 1}, {300, 2}};

TEST(SmallGradients, ArriveInTheSum) {
  on_three([](Communicator& comm) {
    Model model(comm, kThree);
    GradientCompressor compressor(options_for(Fp16()), model.tensors, comm);
    constexpr int kSteps = 300;
    std::vector<double> sum(values(model).size());
    std::int64_t compressed = 0;
    for (int step = 0; step < kSteps; ++step) {
      fill_small_ones(model, step);
      compressed += compressor.compressing() ? 1 : 0;
      model.exchange(compressor, 1 + static_cast<std::size_t>(step) % 3);
      const auto result = values(model);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(result[i]);
    }
    // What each rank still owes is at most half of float16's smallest number.
    const double limit = 3 * 0x1p-25 + 1e-10;
    for (std::size_t i = 0; i < 1200; i += 2) ASSERT_NEAR(sum[i], kSteps * 4e-8, limit) << i;
    for (std::size_t i = 1200; i < 1717; ++i) ASSERT_NEAR(sum[i], kSteps * -4e-8, limit) << i;
    EXPECT_EQ(sum.back(), kSteps * 0.25);
    EXPECT_EQ(compressor.statistics().underflowed, compressed * (600 + 517));
    EXPECT_EQ(compressor.statistics().saturated, 0);
  });
}

TEST(SmallGradients, WhatIsOwedIsPartOfTheState) {
  on_three([](Communicator& comm) {
    Model model(comm, kThree);
    GradientCompressor whole(options_for(Fp16()), model.tensors, comm);
    std::vector<std::vector<float>> results;
    std::vector<CompressionState> state;
    constexpr int kSteps = 12;
    constexpr int kSaved = 5;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSaved) state = whole.save_state();
      fill_small_ones(model, step);
      model.exchange(whole);
      results.push_back(values(model));
    }
    GradientCompressor restored(options_for(Fp16()), model.tensors, comm);
    restored.load_state(state);
    for (int step = kSaved; step < kSteps; ++step) {
      fill_small_ones(model, step);
      model.exchange(restored);
      EXPECT_EQ(values(model), results[static_cast<std::size_t>(step)]) << "step " << step;
    }
  });
}

// Without small values there is no error feedback: values are those of one rounding, independent of earlier exchanges.
TEST(SmallGradients, OthersAreRoundedOnce) {
  on_three([](Communicator& comm) {
    Model model(comm, kThree);
    CompressionOptions options = options_for(Fp16());
    options.compared_steps = 0;
    GradientCompressor often(options, model.tensors, comm);
    for (int step = 0; step < 5; ++step) {
      fill(model, comm.rank(), step);
      for (std::size_t t = 0; t < 3; ++t) {
        for (float& v : model.of(t)) v = std::copysign(std::fabs(v) + 0.01f, v);
      }
      model.exchange(often);
    }
    const auto last = values(model);
    GradientCompressor once(options, model.tensors, comm);
    fill(model, comm.rank(), 4);
    for (std::size_t t = 0; t < 3; ++t) {
      for (float& v : model.of(t)) v = std::copysign(std::fabs(v) + 0.01f, v);
    }
    model.exchange(once);
    EXPECT_EQ(values(model), last);
    EXPECT_EQ(often.statistics().underflowed, 0);
  });
}

}  // namespace
}  // namespace dtrain::comm
