// The parts of a training step, each by itself.
#include <cmath>
#include <functional>
#include <optional>

#include <gtest/gtest.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include "dtrain/rank/rank_session.h"
#include "exchange/gradient_exchange.h"
#include "exchange/strategy_picker.h"
#include "no_common_memory.h"
#include "small_model.h"
#include "small_run.h"
#include "step/aggregation_window.h"
#include "step/exchange_mode.h"
#include "step/local_mode.h"
#include "step/round_vote.h"
#include "step/stability.h"

namespace dtrain::train {
namespace {

TEST(AggregationWindow, IsFullAfterItsRounds) {
  AggregationWindow window(2, true);
  window.begin_round();
  window.add_batch();
  EXPECT_FALSE(window.full());
  window.begin_round();
  EXPECT_TRUE(window.full());
  EXPECT_EQ(window.own_scale(), 1);  // one batch in two rounds, averaged
  window.close();
  EXPECT_EQ(window.rounds(), 0);
  EXPECT_EQ(window.rounds_begun(), 2);
  EXPECT_EQ(window.own_scale(), 1);  // nothing to scale
}

// A run may go on from a checkpoint within a longer window than its own.
TEST(AggregationWindow, IsFullWhereACheckpointHasMoreRounds) {
  AggregationWindow window(2, true);
  for (int round = 0; round < 3; ++round) window.begin_round();
  EXPECT_EQ(window.rounds(), 3);
  EXPECT_TRUE(window.full());
}

TEST(AggregationWindow, ScalesOwnSumsToTheirRounds) {
  AggregationWindow window(4, false);
  for (int round = 0; round < 4; ++round) window.begin_round();
  window.add_batch();
  window.add_batch();
  EXPECT_EQ(window.own_scale(), 2);
}

TEST(CollectiveVote, CountsBatchesAndAgrees) {
  run_small(3, [](SmallRun& run) {
    const int rank = run.services.world.rank;
    NonFinite non_finite(run.services, false);
    CollectiveVote vote(run.services, non_finite);
    const std::optional<profile::TraceWindow> trace = profile::TraceWindow{7, 9};
    vote.announce({true, false, rank == 0 ? trace : std::nullopt, 0});
    vote.announce({rank == 1, rank == 2, std::nullopt, 1});
    const Round round = vote.agree();
    EXPECT_EQ(round.active, 1);
    EXPECT_TRUE(round.stop);
    EXPECT_TRUE(vote.stop_seen());
    EXPECT_EQ(vote.batches(), 4);
    EXPECT_EQ(vote.ranks_with_batches(), 3);
    const auto window = vote.take_trace_window();
    ASSERT_TRUE(window);
    EXPECT_EQ(window->last_batch, 9);
    EXPECT_FALSE(window->kernels_alone);
    EXPECT_FALSE(vote.take_trace_window());
    vote.begin_period(rank == 0);
    vote.announce({false, false, std::nullopt, 2});
    vote.collect();
    EXPECT_EQ(vote.batches(), 0);
    EXPECT_EQ(vote.ranks_with_batches(), 1);
    const profile::TraceWindow kernels{.first_batch = 8, .last_batch = 8, .kernels_alone = true};
    vote.announce({false, false, rank == 0 ? std::optional(kernels) : std::nullopt, 3});
    vote.collect();
    EXPECT_EQ(vote.take_trace_window(), kernels);
  });
}

TEST(CollectiveVote, TellsAllRanksWhatDiffers) {
  run_small(3, [](SmallRun& run) {
    const int rank = run.services.world.rank;
    NonFinite non_finite(run.services, false);
    CollectiveVote vote(run.services, non_finite);
    std::vector<Difference> differences;
    vote.explain_with([&](Difference difference) { differences.push_back(difference); });
    const auto announce = [&](bool has_batch, std::uint64_t rates, std::uint64_t place) {
      vote.announce({.has_batch = has_batch, .rates = rates, .place = place});
      vote.collect();
    };
    announce(true, 7, 9);
    announce(rank != 1, rank == 1 ? 1 : 7, rank == 1 ? 1 : 9);  // it has no batch, and says nothing of one
    EXPECT_TRUE(differences.empty());
    announce(true, rank == 2 ? 8 : 7, 9);
    EXPECT_EQ(differences, std::vector{Difference::kRates});
    announce(true, 7, rank == 0 ? 10 : 9);
    EXPECT_EQ(differences, (std::vector{Difference::kRates, Difference::kPlace}));
  });
}

// Ranks that read announcements late find that a wish to stop is old in the same round.
TEST(CollectiveVote, KnowsWhenAWishToStopIsOld) {
  run_small(2, [](SmallRun& run) {
    NonFinite non_finite(run.services, false);
    CollectiveVote vote(run.services, non_finite);
    constexpr std::int64_t kLag = 2;
    for (std::int64_t round = 1; round <= 6; ++round) {
      vote.announce({true, run.services.world.rank == 1 && round == 3, std::nullopt, round});
      vote.collect(kLag);
      EXPECT_EQ(vote.stop_is_old(kLag), round >= 5) << "in round " << round;
    }
    vote.collect();
  });
}

TEST(CollectiveVote, BringsLossesThatAreNotFiniteToRankZero) {
  run_small(2, [](SmallRun& run) {
    NonFinite non_finite(run.services, false);
    CollectiveVote vote(run.services, non_finite);
    if (run.services.world.rank == 1) non_finite.see_loss(std::nan(""), 4);
    vote.announce({true, false, std::nullopt, 4});
    vote.collect();
    EXPECT_EQ(non_finite.batches(), 1);
    non_finite.write();
    if (run.services.world.rank == 0) {
      EXPECT_EQ(run.plan["non_finite"]["text"], "the loss is nan in batch 4 on rank 1");
      ASSERT_EQ(run.events.size(), 1u);
    } else {
      EXPECT_TRUE(run.plan.empty());
    }
  });
}

// On a GPU values are read some batches later, several at once now and then.
TEST(NonFinite, KeepsBatchesApart) {
  run_small(1, [](SmallRun& run) {
    NonFinite non_finite(run.services, false);
    for (const std::int64_t batch : {3, 4}) non_finite.see_loss(std::nan(""), batch);
    non_finite.see_norm(HUGE_VAL, 5);
    for (const std::int64_t batch : {2, 3, 4, 5}) {
      non_finite.add_round(non_finite.take_words(batch), batch);
      EXPECT_EQ(non_finite.batches(), batch - 2);
    }
    non_finite.write();
    EXPECT_EQ(run.plan["non_finite"]["first_batch"], 3);
    EXPECT_EQ(run.plan["non_finite"]["batches"], 3);
  });
}

TEST(AloneVote, AgreesWithItself) {
  run_small(1, [](SmallRun& run) {
    NonFinite non_finite(run.services, false);
    AloneVote vote(non_finite);
    vote.announce({true, false, std::nullopt, 0});
    EXPECT_EQ(vote.agree().active, 1);
    EXPECT_FALSE(vote.stop_seen());
    vote.announce({false, true, std::nullopt, 1});
    EXPECT_EQ(vote.agree().active, 0);
    EXPECT_TRUE(vote.stop_seen());
  });
}

TEST(ExchangeScale, BringsShortWindowsToTheMeanOrTheSum) {
  run_small(2, [](SmallRun& run) {
    for (const bool average : {true, false}) {
      NonFinite non_finite(run.services, false);
      CollectiveVote vote(run.services, non_finite);
      AggregationWindow window(4, average);
      ExchangeScale scale(run.services.communicator, window, vote, /*on_host=*/true, /*scaler=*/nullptr);
      EXPECT_EQ(scale.full(), average ? 1.0 / 8 : 1.0 / 2);
      for (int round = 0; round < 3; ++round) {  // rank 1 has had no batch in the last one
        vote.announce({round < 2 || run.services.world.rank == 0, false, std::nullopt, round});
        window.begin_round();
      }
      EXPECT_EQ(scale.correction(), average ? 8.0 / 5 : 8.0 / 5 * 3 / 4);
    }
  });
}

struct CountingHook final : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& calls) : calls_(calls) {}
  void operator()(const torch::autograd::Variable&) override { ++calls_; }
  int& calls_;
};

TEST(GradientHooks, KeepTheUsersHook) {
  run_small(1, [](SmallRun& run) {
    torch::nn::Linear model(3, 2);
    int calls = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(model->weight, std::make_unique<CountingHook>(calls));
    FlatParameters flat(*model, run.services.communicator);
    GradientExchange exchange(flat, run.services.communicator, run.services.communicator, run.recorder);
    {
      const GradientHooks hooks(flat, exchange);
      exchange.begin_batch(false);
      exchange.backward(model->forward(torch::ones({1, 3})).sum());
      EXPECT_EQ(calls, 1);
      EXPECT_TRUE(model->weight.grad().defined());
    }
    EXPECT_FALSE(model->weight.grad().defined());
    model->forward(torch::ones({1, 3})).sum().backward();
    EXPECT_EQ(calls, 2);
  });
}

TEST(WrittenParameters, BecomeRankZeros) {
  run_small(3, [](SmallRun& run) {
    const int rank = run.services.world.rank;
    torch::nn::Linear model(3, 2);
    const at::NoGradGuard no_grad;
    model->weight.fill_(1);
    model->bias.fill_(2);
    FlatParameters flat(*model, run.services.communicator);  // bias, then weight
    ParameterWatch watch(*model, flat);
    watch.note(false);
    WrittenParameters written(run.services, flat, watch);
    EXPECT_TRUE(written.mine().empty());
    if (rank < 2) model->weight.fill_(5 + rank);
    EXPECT_EQ(written.mine().empty(), rank == 2);
    const auto indices = written.agree(written.mine());
    EXPECT_EQ(indices, std::vector<std::size_t>{1});
    written.make_alike(indices);
    EXPECT_TRUE(torch::equal(model->weight, torch::full({2, 3}, 5.0)));
    EXPECT_TRUE(torch::equal(model->bias, torch::full({2}, 2.0)));
  });
}

struct Picking {
  Picking(SmallRun& run, torch::nn::Module& model, const StrategyOptions& options)
      : flat(model, run.services.communicator),
        optimizer(AdamW{}, nullptr, flat),
        fusion(flat, run.services, {.threshold_bytes = 100}),
        exchange(flat, run.services.communicator, run.services.communicator, run.recorder),
        in_flight(at::kCPU, run.services.communicator, run.recorder),
        picker(run.services, flat, optimizer, exchange, fusion, scale, in_flight, options, [] { return true; }) {}
  FixedScale scale{0.5};
  FlatParameters flat;
  FlatOptimizer optimizer;
  Fusion fusion;
  GradientExchange exchange;
  StepsInFlight in_flight;
  StrategyPicker picker;
};

TEST(StrategyPicker, TakesWhatTheExperimentSays) {
  using config::ShardedOptimizer;
  run_small(2, [](SmallRun& run) {
    torch::nn::Linear model(8, 8);
    const auto operation = [&](const StrategyOptions& options) {
      Picking picking(run, *model, options);
      return std::string(picking.picker.strategy().operation());
    };
    EXPECT_EQ(operation({ShardedOptimizer::kOff, {}, 0}), "all_reduce");
    EXPECT_EQ(operation({ShardedOptimizer::kAuto, {}, 0}), "all_reduce");  // at first
    EXPECT_EQ(operation({ShardedOptimizer::kOn, {}, 0}), "reduce_scatter");
    EXPECT_EQ(operation({ShardedOptimizer::kOn, comm::Bf16(), 0}), "all_reduce");
  });
}

TEST(StrategyPicker, StaysReplicatedOnceAModelWritesParameters) {
  run_small(2, [](SmallRun& run) {
    torch::nn::Linear model(8, 8);
    Picking picking(run, *model, {config::ShardedOptimizer::kAuto, {}, 0});
    picking.picker.check_write("weight");
    picking.picker.stop_sharding("weight");
    EXPECT_EQ(run.plan.count("strategy"), run.services.world.rank == 0 ? 1u : 0u);
    for (int step = 1; step < 40; ++step) {
      picking.picker.begin_batch();
      picking.picker.end_batch(true, step);
      EXPECT_FALSE(picking.picker.strategy().layout().sharded);
    }
  });
}

TEST(StrategyPicker, RefusesWritesToSharedParameters) {
  run_small(2, [](SmallRun& run) {
    torch::nn::Linear model(8, 8);
    Picking picking(run, *model, {config::ShardedOptimizer::kOn, {}, 0});
    EXPECT_TRUE(picking.picker.strategy().layout().one_copy);
    EXPECT_THROW(picking.picker.check_write("weight"), rank::AgreedError);
  });
}

TEST(StrategyPicker, LetsStrategiesTakeTurnsAndWritesTheChoice) {
  run_small(2, [](SmallRun& run) {
    torch::nn::Linear model(8, 8);
    Picking picking(run, *model, {config::ShardedOptimizer::kAuto, {}, 0});
    int sharded = 0;
    for (int step = 1; step <= 22; ++step) {
      picking.picker.begin_batch();
      sharded += picking.picker.strategy().layout().sharded ? 1 : 0;
      EXPECT_TRUE(run.plan.empty());
      picking.picker.end_batch(true, step);
    }
    EXPECT_EQ(sharded, 10);
    if (run.services.world.rank == 0) {
      EXPECT_EQ(run.plan["strategy"]["turns"].size(), 4u);
    }
  });
}

// As run_small(), of ranks without common memory, as those of several hosts.
void run_apart(int ranks, const std::function<void(SmallRun&)>& fn) {
  const test::TestWorld world(ranks);
  test::run_control_ranks(world, [&](comm::ControlPlane& control) {
    const auto communicator = comm::make_shm_communicator(control, world.communicator_options());
    NoCommonMemory apart(*communicator);
    SmallRun run(control, apart);
    fn(run);
  });
}

// The report of gradients after so many steps of a sharded run.
Json gradients_after(SmallRun& run, std::int64_t width, config::ShardedGradients wanted, int steps) {
  torch::nn::Linear model(width, width);
  Picking picking(run, *model, {config::ShardedOptimizer::kOn, {}, 0, wanted});
  for (int step = 1; step <= steps; ++step) {
    picking.picker.begin_batch();
    picking.picker.end_batch(true, step);
  }
  return run.services.is_first_rank() ? run.plan["strategy"]["gradients"] : Json();
}

TEST(GradientSharding, TakesTurnsWhereRanksHaveNoCommonMemory) {
  using config::ShardedGradients;
  constexpr std::int64_t kWide = 1024;  // half of 4 MiB is spare
  run_apart(2, [](SmallRun& run) {
    const Json before = gradients_after(run, kWide, ShardedGradients::kAuto, 10);
    const Json after = gradients_after(run, kWide, ShardedGradients::kAuto, 30);
    const Json small = gradients_after(run, 8, ShardedGradients::kAuto, 30);
    if (!run.services.is_first_rank()) return;
    EXPECT_FALSE(before.contains("whole_ms"));
    EXPECT_TRUE(after.contains("whole_ms")) << after;
    const double most = after["whole_ms"].get<double>() * 1.01;
    EXPECT_EQ(after["sharded"].get<bool>(), after["sharded_ms"].get<double>() <= most);
    EXPECT_FALSE(small["sharded"].get<bool>());
    EXPECT_FALSE(small.contains("whole_ms"));
  });
}

TEST(GradientSharding, DoesWhatTheExperimentSays) {
  using config::ShardedGradients;
  for (const bool common : {false, true}) {
    (common ? run_small : run_apart)(2, [](SmallRun& run) {
      const Json on = gradients_after(run, 1024, ShardedGradients::kOn, 30);
      const Json off = gradients_after(run, 1024, ShardedGradients::kOff, 30);
      if (!run.services.is_first_rank()) return;
      EXPECT_TRUE(on["sharded"].get<bool>());
      EXPECT_FALSE(on.contains("whole_ms"));
      const auto bytes = on["bytes"].get<std::int64_t>();
      EXPECT_GE(on["kept_bytes"].get<std::int64_t>(), bytes / 2);
      EXPECT_LE(on["kept_bytes"].get<std::int64_t>(), bytes / 2 + 8 * 4096);
      EXPECT_FALSE(off["sharded"].get<bool>());
      EXPECT_EQ(off["kept_bytes"], off["bytes"]);
    });
  }
}

TEST(GradientSharding, IsLeftOutOnOneHostUnlessAskedFor) {
  run_small(2, [](SmallRun& run) {
    const Json gradients = gradients_after(run, 1024, config::ShardedGradients::kAuto, 60);
    if (!run.services.is_first_rank()) return;
    EXPECT_FALSE(gradients["sharded"].get<bool>());
    EXPECT_FALSE(gradients.contains("whole_ms"));
  });
}

}  // namespace
}  // namespace dtrain::train
