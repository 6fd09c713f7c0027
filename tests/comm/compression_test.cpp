// Every codec, on ranks that are threads: how far results are from the exact mean, that all ranks get the same bits,
// what becomes of what was left out, and of numbers that are none.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "dtrain/base/error.h"
#include "dtrain/comm/compression.h"
#include "flat_gradients.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::fill;
using test::kShapes;
using test::Model;
using test::TestWorld;
using test::values;

// The exact mean over ranks of what fill() makes.
std::vector<double> mean_of(Communicator& comm, const std::vector<float>& mine) {
  std::vector<double> sum(mine.begin(), mine.end());
  comm.all_reduce(sum.data(), sum.size(), DataType::kFloat64).wait();
  for (double& v : sum) v /= comm.world_size();
  return sum;
}

double distance(const std::vector<double>& want, const std::vector<double>& got) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (want[i] - got[i]) * (want[i] - got[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}
double distance(const std::vector<double>& want, const std::vector<float>& got) {
  return distance(want, std::vector<double>(got.begin(), got.end()));
}

void expect_same_everywhere(Communicator& comm, const std::vector<float>& mine) {
  std::vector<float> all(mine.size() * static_cast<std::size_t>(comm.world_size()));
  comm.all_gather(mine.data(), all.data(), mine.size(), DataType::kFloat32).wait();
  for (int r = 0; r < comm.world_size(); ++r) {
    EXPECT_EQ(std::memcmp(all.data() + static_cast<std::size_t>(r) * mine.size(), mine.data(), mine.size() * 4), 0)
        << "rank " << r << " has other bits";
  }
}

const PowerSgd kPowerSgd{.rank = 4, .warmup_steps = 0};
const TopK kTopK{.ratio = 0.05};

CompressionOptions options(const Compression& codec) {
  CompressionOptions result;
  result.codec = codec_maker(codec);
  return result;
}

struct Case {
  std::string backend;
  int ranks;
  Compression codec;
};

class Codecs : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(Communicator&)>& fn) {
    test::run_communicator_ranks(TestWorld(GetParam().ranks), GetParam().backend, fn);
  }
  const Compression& codec() const { return GetParam().codec; }
  template <class Settings>
  bool is() const {
    return std::holds_alternative<Settings>(codec());
  }
  // Of all values; fp16 keeps small ones alone.
  bool has_feedback() const { return !is<Fp16>() && !is<Bf16>(); }
};

TEST_P(Codecs, ResultsAreCloseAndTheSameEverywhere) {
  run([&](Communicator& comm) {
    Model model(comm, kShapes);
    GradientCompressor compressor(options(codec()), model.tensors, comm);
    const double limit = is<Fp16>() ? 6e-4 : is<Bf16>() ? 5e-3 : 0.01;
    for (int step = 0; step < 6; ++step) {
      fill(model, comm.rank(), step);
      const auto want = mean_of(comm, values(model));
      model.exchange(compressor, 1 + static_cast<std::size_t>(step) % 4, step % 2 == 1);  // cut anew each time
      const auto got = values(model);
      expect_same_everywhere(comm, got);
      if (is<Int8>() || !has_feedback()) {
        EXPECT_LT(distance(want, got), limit) << "step " << step;
      }
    }
    EXPECT_EQ(compressor.statistics().compressed_steps, 6);
    EXPECT_GT(compressor.statistics().sent_bytes, 0);
    if (comm.world_size() < 4) {
      EXPECT_LT(compressor.statistics().sent_bytes, 0.55 * compressor.statistics().uncompressed_bytes);
    }
    EXPECT_EQ(compressor.statistics().saturated, 0);
    EXPECT_GT(compressor.statistics().coding.count(), 0);
  });
}

// What one step leaves out the next ones bring: the sum of all results nears the sum of all gradients, and does so
// however the buckets are cut.
TEST_P(Codecs, NothingIsLostOverManySteps) {
  run([&](Communicator& comm) {
    Model model(comm, kShapes);
    GradientCompressor compressor(options(codec()), model.tensors, comm);
    std::vector<double> want, got;
    constexpr int kSteps = 120;
    for (int step = 0; step < kSteps; ++step) {
      fill(model, comm.rank(), 7);  // the same gradient, so that what is owed stays bounded
      const auto mean = mean_of(comm, values(model));
      want.resize(mean.size());
      got.resize(mean.size());
      for (std::size_t i = 0; i < mean.size(); ++i) want[i] += mean[i];
      model.exchange(compressor, 1 + static_cast<std::size_t>(step) % 3);
      const auto result = values(model);
      for (std::size_t i = 0; i < result.size(); ++i) got[i] += result[i];
    }
    EXPECT_LT(distance(want, got), has_feedback() ? 0.2 : 5e-3);
    // Without error feedback this would stay where one step is: about 0.8 (topk) and 0.9 (powersgd).
  });
}

// Gradient descent on the sum of quadratics with different optima reaches their mean.
TEST_P(Codecs, AQuadraticReachesItsOptimum) {
  run([&](Communicator& comm) {
    Model model(comm, {{24, 32}, {24, 1}});
    GradientCompressor compressor(options(codec()), model.tensors, comm);
    fill(model, comm.rank(), 3);
    const auto target = values(model);
    const auto optimum = mean_of(comm, target);
    std::vector<double> x(target.size(), 0.0);
    for (int step = 0; step < 900; ++step) {
      std::size_t i = 0;
      for (std::size_t t = 0; t < model.tensors.size(); ++t) {
        for (float& v : model.of(t)) {
          v = static_cast<float>(x[i] - static_cast<double>(target[i]));
          ++i;
        }
      }
      model.exchange(compressor);
      const auto gradient = values(model);
      const double rate = step < 300   ? 0.05
                          : step < 600 ? 0.01
                                       : 0.002;  // what is owed moves the result by about the rate
      for (std::size_t k = 0; k < x.size(); ++k) x[k] -= rate * static_cast<double>(gradient[k]);
    }
    EXPECT_LT(distance(optimum, x), 0.02);
  });
}

TEST_P(Codecs, WhatIsNotFiniteReachesEveryoneAndIsForgotten) {
  run([&](Communicator& comm) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      Model model(comm, kShapes);
      GradientCompressor compressor(options(codec()), model.tensors, comm);
      for (int step = 0; step < 4; ++step) {
        fill(model, comm.rank(), step);
        if (step == 1 && comm.rank() == comm.world_size() - 1) {
          for (const std::size_t t : {0u, 1u, 5u}) {
            for (std::size_t i = 0; i < model.of(t).size(); i += 3) model.of(t)[i] = bad;
          }
        }
        model.exchange(compressor, 2);
        for (std::size_t t = 0; t < model.tensors.size(); ++t) {
          const auto part = model.of(t);
          const bool finite = std::all_of(part.begin(), part.end(), [](float v) { return std::isfinite(v); });
          const bool hit = step == 1 && (t == 0 || t == 1 || t == 5);
          EXPECT_EQ(finite, !hit) << "tensor " << t << ", step " << step << ", " << bad;
        }
      }
    }
  });
}

TEST_P(Codecs, ZerosStayZerosAndDoNotStick) {
  run([&](Communicator& comm) {
    Model model(comm, kShapes);
    GradientCompressor compressor(options(codec()), model.tensors, comm);
    for (int step = 0; step < 3; ++step) {
      std::memset(model.data(), 0, model.count() * sizeof(float));
      model.exchange(compressor);
      for (const float v : values(model)) ASSERT_EQ(v, 0.0f);
    }
    std::vector<double> want, got;
    for (int step = 0; step < 60; ++step) {
      fill(model, comm.rank(), 1);
      const auto mean = mean_of(comm, values(model));
      model.exchange(compressor);
      const auto result = values(model);
      want.resize(mean.size());
      got.resize(mean.size());
      for (std::size_t i = 0; i < mean.size(); ++i) {
        want[i] += mean[i];
        got[i] += static_cast<double>(result[i]);
      }
    }
    EXPECT_LT(distance(want, got), 0.4);
  });
}

TEST_P(Codecs, RestoredStateGoesOnBitForBit) {
  run([&](Communicator& comm) {
    Model model(comm, kShapes);
    CompressionOptions with = options(codec());
    with.codec.warmup_steps = is<PowerSgd>() ? 2 : 0;
    with.compared_steps = 2;
    GradientCompressor whole(with, model.tensors, comm);
    std::vector<std::vector<float>> results;
    std::vector<CompressionState> state;
    constexpr int kSteps = 9;
    for (const int saved_after : {1, 4}) {
      GradientCompressor first(with, model.tensors, comm);
      results.clear();
      for (int step = 0; step < kSteps; ++step) {
        if (step == saved_after) state = first.save_state();
        fill(model, comm.rank(), step);
        model.exchange(first, 3);
        results.push_back(values(model));
      }
      GradientCompressor second(with, model.tensors, comm);
      second.load_state(state);
      for (int step = saved_after; step < kSteps; ++step) {
        fill(model, comm.rank(), step);
        model.exchange(second, 3);
        const auto got = values(model);
        ASSERT_EQ(std::memcmp(got.data(), results[static_cast<std::size_t>(step)].data(), got.size() * 4), 0)
            << "step " << step;
      }
      auto wrong = state;
      wrong.back().values.push_back(0);
      EXPECT_THROW(second.load_state(wrong), CommError);
      wrong.pop_back();
      EXPECT_THROW(second.load_state(wrong), CommError);
    }
  });
}

// A gradient that the optimizer does not use must not be lost: what was taken from the error feedback goes back.
TEST_P(Codecs, WhatWasNotAppliedComesBack) {
  if (is<Bf16>()) GTEST_SKIP() << "has no error feedback";
  run([&](Communicator& comm) {
    Model model(comm, kShapes);
    GradientCompressor compressor(options(codec()), model.tensors, comm);
    fill(model, comm.rank(), 5);
    const auto want = mean_of(comm, values(model));
    model.exchange(compressor);
    std::vector<double> got(want.size());
    const auto add = [&] {
      const auto result = values(model);
      for (std::size_t i = 0; i < got.size(); ++i) got[i] += static_cast<double>(result[i]);
    };
    add();
    for (int step = 0; step < 400; ++step) {
      std::memset(model.data(), 0, model.count() * sizeof(float));
      model.exchange(compressor);
      if (step % 2 == 0) {
        for (std::size_t t = 0; t < model.tensors.size(); ++t) compressor.not_applied(t);
        for (const float v : values(model)) ASSERT_EQ(v, 0.0f) << "the norm of all gradients must not see it";
      } else {
        add();
      }
    }
    EXPECT_LT(distance(want, got), is<PowerSgd>() ? 0.6 : 1e-3);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Compression& codec : std::vector<Compression>{Fp16(), Bf16(), Int8(), kPowerSgd, kTopK}) {
    for (const int ranks : {2, 3}) all.push_back({"thread", ranks, codec});
    all.push_back({"shm", 2, codec});
  }
  all.push_back({"shm", 4, kPowerSgd});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.backend + std::to_string(info.param.ranks) + word_of(info.param.codec);
});

void on(int ranks, const std::function<void(Communicator&)>& fn) {
  test::run_communicator_ranks(TestWorld(ranks), "thread", fn);
}

TEST(Float16, SumsOfLargeValuesDoNotOverflow) {
  on(3, [](Communicator& comm) {
    Model model(comm, {{10, 10}});
    GradientCompressor compressor(options(Fp16()), model.tensors, comm);
    for (float& v : model.of(0)) v = 60000.0f;
    model.exchange(compressor);
    for (const float v : model.of(0)) EXPECT_NEAR(v, 60000.0f, 40.0f);
    EXPECT_EQ(compressor.statistics().saturated, 0);
    // More than float16 holds at all: cut, counted, and finite, as it would be in float32.
    for (float& v : model.of(0)) v = comm.rank() == 0 ? 3e38f : -1e7f;
    model.exchange(compressor);
    for (const float v : model.of(0)) EXPECT_TRUE(std::isfinite(v));
    EXPECT_EQ(compressor.statistics().saturated, 100);
    for (float& v : model.of(0)) v = 3e38f;
    model.exchange(compressor);
    for (const float v : model.of(0)) EXPECT_NEAR(v, 65504.0f, 100.0f);
  });
  on(2, [](Communicator& comm) {
    Model model(comm, {{9, 1}});
    GradientCompressor compressor(options(Bf16()), model.tensors, comm);
    for (float& v : model.of(0)) v = 3.4e38f;
    model.exchange(compressor);
    for (const float v : model.of(0)) EXPECT_TRUE(std::isfinite(v)) << v;
  });
}

TEST(Float16, RoundsToNearestEven) {
  on(2, [](Communicator& comm) {
    Model model(comm, {{4, 1}});
    const std::vector<float> in = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 1 + 0x1p-11f + 0x1p-20f, 0x1p-25f};
    const std::vector<float> half = {1, 1 + 0x1p-9f, 1 + 0x1p-10f, 0};
    for (const bool float16 : {true, false}) {
      GradientCompressor compressor(float16 ? options(Fp16()) : options(Bf16()), model.tensors, comm);
      for (std::size_t i = 0; i < 4; ++i) model.of(0)[i] = in[i] * 2;  // scaled by 1/2
      model.of(0)[3] = in[3];
      if (!float16) model.of(0)[0] = 2 * (1 + 0x1p-8f), model.of(0)[1] = 2 * (1 + 3 * 0x1p-8f);
      model.exchange(compressor);
      if (float16) {
        for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(model.of(0)[i], 2 * half[i]) << i;
      } else {
        EXPECT_EQ(model.of(0)[0], 2.0f);
        EXPECT_EQ(model.of(0)[1], 2 * (1 + 0x1p-6f));
      }
    }
  });
}

TEST(PowerSgd, VectorsAndSmallMatricesAreExactAndLowRankIsFound) {
  on(2, [](Communicator& comm) {
    Model model(comm, {{100, 80}, {80, 1}, {5, 6}});
    GradientCompressor compressor(options(PowerSgd{.rank = 2, .warmup_steps = 0}), model.tensors, comm);
    for (int step = 0; step < 3; ++step) {
      fill(model, comm.rank(), step);
      for (std::size_t i = 0; i < 100; ++i) {  // of rank 1 on each rank, the same columns on both
        for (std::size_t k = 0; k < 80; ++k) {
          model.of(0)[80 * i + k] =
              std::sin(static_cast<float>(i)) * static_cast<float>(k + 1) * (comm.rank() ? 2.f : -5.f);
        }
      }
      auto mine = values(model);
      const auto want = mean_of(comm, mine);
      model.exchange(compressor);
      const auto got = values(model);
      const std::vector<double> wanted(want.begin(), want.begin() + 8000);
      EXPECT_LT(distance(wanted, std::vector<float>(got.begin(), got.begin() + 8000)), 1e-5);
      for (std::size_t i = 8000; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], static_cast<float>(want[i]));
    }
  });
}

TEST(PowerSgd, WarmsUpUncompressed) {
  on(2, [](Communicator& comm) {
    Model model(comm, {{100, 80}});
    GradientCompressor compressor(options(PowerSgd{.rank = 4, .warmup_steps = 3}), model.tensors, comm);
    for (int step = 0; step < 5; ++step) {
      fill(model, comm.rank(), step);
      const auto want = mean_of(comm, values(model));
      EXPECT_EQ(compressor.compressing(), step >= 3);
      model.exchange(compressor);
      EXPECT_EQ(distance(want, values(model)) < 1e-6, step < 3) << step;
    }
    EXPECT_EQ(compressor.statistics().compressed_steps, 2);
    EXPECT_EQ(compressor.statistics().steps, 5);
  });
}

TEST(TopK, SendsTheLargestAndOfEqualOnesTheFirst) {
  on(2, [](Communicator& comm) {
    Model model(comm, {{10, 10}});
    GradientCompressor compressor(options(kTopK), model.tensors, comm);  // 5 of 100
    for (float& v : model.of(0)) v = 1;
    model.of(0)[50] = -7;
    model.of(0)[70] = 3;
    model.exchange(compressor);
    for (std::size_t i = 0; i < 100; ++i) {
      const float want = i == 50 ? -7.f : i == 70 ? 3.f : i < 3 ? 1.f : 0.f;
      EXPECT_EQ(model.of(0)[i], want) << i;
    }
  });
}

TEST(Compressor, OneRankAndFloat64TravelAsTheyAre) {
  on(1, [](Communicator& comm) {
    Model model(comm, kShapes);
    GradientCompressor compressor(options(kTopK), model.tensors, comm);
    fill(model, 0, 1);
    const auto before = values(model);
    EXPECT_FALSE(compressor.compressing());
    model.exchange(compressor);
    EXPECT_EQ(values(model), before);
  });
  on(2, [](Communicator& comm) {
    const auto buffer = comm.allocate(64 * sizeof(double));
    auto* const data = reinterpret_cast<double*>(buffer->bytes().data());
    for (const Compression& codec : std::vector<Compression>{Fp16(), Int8(), kPowerSgd, kTopK}) {
      for (int i = 0; i < 64; ++i) data[i] = 1.0 / (3 + i + comm.rank());
      GradientCompressor compressor(options(codec), {{"d", data, 64, 8, 8, DataType::kFloat64}}, comm);
      const std::vector<std::size_t> tensors = {0};
      compressor.exchange({tensors, data, 64, DataType::kFloat64, 0}, 0.5).wait();
      compressor.end_step();
      for (int i = 0; i < 64; ++i) EXPECT_EQ(data[i], (1.0 / (3 + i) + 1.0 / (4 + i)) * 0.5);
    }
  });
}

TEST(Compressor, OptionsThatMakeNoSense) {
  for (const int ranks : {1, 2, 3}) {
    on(ranks, [](Communicator& comm) {
      EXPECT_THROW(GradientCompressor(options(TopK{.ratio = 0}), {}, comm), CommError);
      EXPECT_THROW(GradientCompressor(options(PowerSgd{.rank = 0, .warmup_steps = 0}), {}, comm), CommError);
    });
  }
}

}  // namespace
}  // namespace dtrain::comm
