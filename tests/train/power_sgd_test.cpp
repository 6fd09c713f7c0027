// PowerSGD in tensor operations against the codec of comm/compression, and what both must give: about the same values
// and state on each rank, the same bits on all of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>

#include "compression/orthonormal.h"
#include "matrices.h"
#include "small_model.h"
#include "small_run.h"

namespace dtrain::train {
namespace {

constexpr int kManySteps = 10;
constexpr double kRounding = 3e-4;          // of values and state, after as many steps
constexpr std::size_t kUnusedMatrix = 0;    // "wide1": no rank uses it in odd steps
constexpr std::size_t kInfiniteMatrix = 6;  // "square": in one step it is infinite on one rank

// The codec of the host, that of tensors, and two that go on from each other's state, as a run that has moved from CPUs
// to GPUs or back.
struct PowerSgdSides {
  PowerSgdSides(FlatParameters& its_parameters, comm::Communicator& communicator, const CompressorOptions& options)
      : parameters(its_parameters),
        host(false, parameters, communicator, options),
        tensors(true, parameters, communicator, options),
        moved_host(false, parameters, communicator, options),
        moved_tensors(true, parameters, communicator, options) {}

  void expect_alike(Side& side, int step) {
    for (const auto& parameter : parameters.parameters()) {
      EXPECT_LE(relative_difference(values_of(side, parameter), values_of(host, parameter)), kRounding)
          << parameter.name << " in step " << step;
    }
    const auto expected = host.state(), got = side.state();
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_LE(relative_difference(got.at(name), value), kRounding) << name << " in step " << step;
    }
  }
  void move() {
    PutState of_host(host.state()), of_tensors(tensors.state());
    moved_tensors.compressor->visit(of_host);
    moved_host.compressor->visit(of_tensors);
  }

  FlatParameters& parameters;
  Side host, tensors, moved_host, moved_tensors;
};

void compare_with_host(int ranks, const comm::PowerSgd& settings) {
  run_small(ranks, [&](SmallRun& run) {
    Matrices model;
    FlatParameters parameters(*model, run.services.communicator);
    std::vector<comm::FusionPlan> plans;
    for (const std::int64_t threshold : {0, 3000, 9000, 1 << 20}) {
      plans.push_back(comm::plan_fusion(items_of(parameters), threshold));
    }
    PowerSgdSides sides(parameters, run.services.communicator, power_sgd_options(settings));
    const int rank = run.services.communicator.rank();
    for (int step = 0; step < kManySteps; ++step) {
      std::vector<Side*> in_step{&sides.host, &sides.tensors};
      if (step > kManySteps / 2) in_step.insert(in_step.end(), {&sides.moved_host, &sides.moved_tensors});
      for (Side* const side : in_step) {
        fill_random(*side, parameters, rank, step);
        if (step == 7 && rank == 0) {
          values_of(*side, parameters.parameters()[kInfiniteMatrix])[5] = -std::numeric_limits<float>::infinity();
        }
        exchange_all(*side, plans[static_cast<std::size_t>(step) % plans.size()], 1.0 / (2 * ranks),
                     step % 2 == 1 ? std::vector<std::size_t>{kUnusedMatrix} : std::vector<std::size_t>());
        sides.expect_alike(*side, step);
      }
      if (step == 7 && ranks > 1) {
        EXPECT_TRUE(values_of(sides.tensors, parameters.parameters()[kInfiniteMatrix]).isnan().all().item<bool>());
      }
      const auto of_ranks = run.services.control.gather("step/" + std::to_string(step), bits_of(sides.tensors));
      EXPECT_EQ(std::count(of_ranks.begin(), of_ranks.end(), of_ranks.front()), ranks) << "in step " << step;
      if (step == kManySteps / 2) sides.move();
    }
  });
}

TEST(PowerSgdTensors, GiveAboutTheValuesOfTheCpusCodec) {
  for (const int ranks : {1, 2, 3}) {
    for (const int rank : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, rank " << rank);
      compare_with_host(ranks, {.rank = rank, .warmup_steps = 0});
    }
  }
}

TEST(PowerSgdTensors, CompressTheSameGradientsAndKeepTheSameState) {
  run_small(2, [](SmallRun& run) {
    Matrices model;
    FlatParameters parameters(*model, run.services.communicator);
    Side side(true, parameters, run.services.communicator, power_sgd_options());
    std::vector<std::string> names;
    for (const auto& [name, value] : side.state()) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"error/high1", "error/high2", "error/square", "error/wide1",
                                               "error/wide2", "error/wide3", "error/wide4", "q/high1", "q/high2",
                                               "q/square", "q/wide1", "q/wide2", "q/wide3", "q/wide4", "steps"}));
  });
}

// Matrices whose rank is 0 or 1, so that most vectors of both factors are replaced.
TEST(PowerSgdTensors, FindMatricesOfLowRank) {
  run_small(2, [](SmallRun& run) {
    Matrices model;
    FlatParameters parameters(*model, run.services.communicator);
    const auto plan = comm::plan_fusion(items_of(parameters), 1 << 20);
    Side host(false, parameters, run.services.communicator, power_sgd_options());
    Side tensors(true, parameters, run.services.communicator, power_sgd_options());
    for (int step = 0; step < 4; ++step) {
      std::map<std::string, at::Tensor> expected;
      for (Side* const side : {&host, &tensors}) {
        for (const auto& parameter : parameters.parameters()) {
          const auto options = parameter.gradient.options();
          at::Tensor value = at::zeros(parameter.gradient.sizes(), options);
          if (step > 0 && value.dim() == 2) {
            auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
            value = torch::randn({value.size(0), 1}, generator, options) *
                    torch::randn({1, value.size(1)}, generator, options);
          }
          values_of(*side, parameter).copy_(value.view({-1}));
          expected[parameter.name] = value.view({-1});
        }
        exchange_all(*side, plan, 0.5);
      }
      for (const auto& parameter : parameters.parameters()) {
        const at::Tensor got = values_of(tensors, parameter);
        EXPECT_LE(relative_difference(got, expected.at(parameter.name)), 1e-5) << parameter.name << " in step " << step;
        EXPECT_LE(relative_difference(got, values_of(host, parameter)), 1e-5) << parameter.name << " in step " << step;
      }
      if (step > 0) continue;
      for (const auto& [name, value] : host.state()) {
        EXPECT_LE(relative_difference(tensors.state().at(name), value), 1e-6) << name;
      }
    }
  });
}

TEST(PowerSgdTensors, GoOnFromSavedStateWithTheSameBits) {
  for (const int ranks : {2, 3}) {
    run_small(ranks, [&](SmallRun& run) {
      Matrices model;
      FlatParameters parameters(*model, run.services.communicator);
      const auto plan = comm::plan_fusion(items_of(parameters), 5000);
      const CompressorOptions options = power_sgd_options({.rank = 2, .warmup_steps = 3});
      Side side(true, parameters, run.services.communicator, options);
      const auto step_of = [&](Side& one, int step) {
        fill_random(one, parameters, run.services.communicator.rank(), step);
        exchange_all(one, plan, 1.0 / ranks);
      };
      for (int step = 0; step < 6; ++step) step_of(side, step);
      Side restored(true, parameters, run.services.communicator, options);
      PutState saved(side.state());
      restored.compressor->visit(saved);
      for (int step = 6; step < 9; ++step) {
        step_of(side, step);
        step_of(restored, step);
        EXPECT_EQ(bits_of(restored), bits_of(side)) << "in step " << step;
      }
    });
  }
}

TEST(PowerSgdTensors, AreNotNarrowedByAutocast) {
  run_small(2, [](SmallRun& run) {
    Matrices model;
    FlatParameters parameters(*model, run.services.communicator);
    const auto plan = comm::plan_fusion(items_of(parameters), 5000);
    Side side(true, parameters, run.services.communicator, power_sgd_options());
    Side under_autocast(true, parameters, run.services.communicator, power_sgd_options());
    for (int step = 0; step < 2; ++step) {
      for (Side* const one : {&side, &under_autocast}) {
        fill_random(*one, parameters, run.services.communicator.rank(), step);
        at::autocast::set_autocast_enabled(at::kCPU, one == &under_autocast);
        exchange_all(*one, plan, 0.5);
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
      EXPECT_EQ(bits_of(under_autocast), bits_of(side)) << "in step " << step;
    }
  });
}

// Gram-Schmidt vector by vector, in float64. Sets `replaced` to the number of vectors that a filler has replaced.
at::Tensor gram_schmidt(const at::Tensor& vectors, int& replaced) {
  const at::Tensor basis = vectors.to(at::kDouble).clone();
  replaced = 0;
  for (std::int64_t v = 0; v < basis.size(0); ++v) {
    at::Tensor vector = basis[v];
    const auto orthogonal = [&] {
      const double before = vector.norm().item<double>();
      for (int pass = 0; pass < 2; ++pass) {
        for (std::int64_t u = 0; u < v; ++u) vector.sub_(basis[u] * vector.dot(basis[u]));
      }
      return vector.norm().item<double>() > before * 1e-6;
    };
    if (!orthogonal()) {
      ++replaced;
      const auto filler = comm::PowerSgd::filler(static_cast<std::size_t>(basis.size(1)), static_cast<std::size_t>(v));
      vector.copy_(torch::tensor(filler));
      EXPECT_TRUE(orthogonal());
    }
    vector.div_(vector.norm());
  }
  return basis.to(at::kFloat);
}

class OrthonormalVectors : public testing::Test {
 protected:
  static constexpr std::int64_t kVectors = 4;

  // `batches`: lists of sets [vectors, length].
  void expect_bases(const std::vector<std::vector<at::Tensor>>& batches, int replacements) {
    Orthonormal orthonormal(kVectors, at::kCPU);
    std::vector<at::Tensor> stacked;
    for (const auto& sets : batches) {
      stacked.push_back(at::stack(sets));
      orthonormal.add_length(sets.front().size(1));
    }
    const std::vector<at::Tensor> bases = orthonormal(stacked);
    ASSERT_EQ(bases.size(), batches.size());
    int all = 0;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      for (std::size_t s = 0; s < batches[b].size(); ++s) {
        const at::Tensor basis = bases[b][static_cast<std::int64_t>(s)];
        int replaced = 0;
        const at::Tensor expected = gram_schmidt(batches[b][s], replaced);
        all += replaced;
        EXPECT_LE((basis - expected).abs().max().item<double>(), 1e-4) << "set " << s << " of batch " << b;
        const at::Tensor products = basis.to(at::kDouble).mm(basis.to(at::kDouble).t());
        EXPECT_LE((products - torch::eye(kVectors, at::kDouble)).abs().max().item<double>(), 1e-6)
            << "set " << s << " of batch " << b;
      }
    }
    EXPECT_EQ(all, replacements);
  }
  at::Tensor random(std::int64_t length) { return torch::randn({kVectors, length}, generator_); }

  at::Generator generator_ = at::detail::createCPUGenerator(3);
};

TEST_F(OrthonormalVectors, OfSeveralLengthsAndSizes) {
  expect_bases({{random(9), random(9) * 1e-25, random(9) * 1e25}, {random(1031)}, {random(37), random(37)}}, 0);
  const at::Tensor sizes = torch::tensor({1e-20f, 1.0f, 1e10f, 1e-30f}).view({kVectors, 1});
  expect_bases({{random(37) * sizes}}, 0);
}

TEST_F(OrthonormalVectors, ReplaceThoseInTheSpanOfEarlierOnes) {
  const at::Tensor zeros = torch::zeros({kVectors, 37}), repeated = random(37), dependent = random(37),
                   one_zero = random(37);
  repeated[1].copy_(repeated[0]);
  dependent[2].copy_(dependent[0] * 2 - dependent[1]);
  one_zero[0].zero_();
  expect_bases({{zeros, random(37), repeated}, {torch::ones({kVectors, 20})}, {dependent, one_zero}},
               4 + 1 + 3 + 1 + 1);
}

TEST_F(OrthonormalVectors, ThatNearlyDependOnEachOtherAreKept) {
  const at::Tensor near = random(37);
  near.narrow(0, 1, 3).mul_(1e-4).add_(near[0]);
  expect_bases({{near}}, 0);
}

TEST_F(OrthonormalVectors, AreNotNumbersWhereOneIsNot) {
  Orthonormal orthonormal(kVectors, at::kCPU);
  orthonormal.add_length(37);
  const at::Tensor sets = at::stack({random(37), random(37), random(37)});
  sets[0][3][2] = std::numeric_limits<float>::infinity();
  sets[2][0][36] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor bases = orthonormal({sets}).front();
  EXPECT_TRUE(bases[0].isnan().all().item<bool>());
  EXPECT_TRUE(bases[1].isfinite().all().item<bool>());
  EXPECT_TRUE(bases[2].isnan().all().item<bool>());
}

}  // namespace
}  // namespace dtrain::train
