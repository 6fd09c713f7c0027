// The codecs as tensor operations against those of comm/compression: on a CPU both give the same bits (powersgd: about
// the same values, power_sgd_test.cpp), keep the same state and say the same of themselves.
// tests/integration/gpu_parity.py compares GPUs with CPUs.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "compression_sides.h"
#include "dtrain/base/error.h"
#include "exchange/replicated.h"
#include "model/flat_optimizer.h"
#include "small_model.h"
#include "small_run.h"

namespace dtrain::train {
namespace {

// Blocks that are full and not, a matrix, a scalar, and a second type.
struct CompressedModelImpl final : torch::nn::Module {
  CompressedModelImpl() {
    for (const auto& [name, sizes] : std::map<std::string, std::vector<std::int64_t>>{
             {"matrix", {40, 37}}, {"block", {256}}, {"long", {700}}, {"one", {}}, {"wide", {16, 5, 3}}}) {
      register_parameter(name, torch::zeros(sizes));
    }
    register_parameter("double", torch::zeros({30}, at::kDouble));
  }
};
TORCH_MODULE(CompressedModel);

constexpr int kSteps = 12;
constexpr std::size_t kMatrix = 2;  // nobody uses it in odd steps; in the first one its gradient is zero

// Of many sizes, some of them zero, and in some steps not finite.
at::Tensor gradient(const FlatParameters::Parameter& parameter, std::size_t index, int rank, int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + 100 * rank) + index);
  const auto sizes = parameter.gradient.sizes();
  const auto options = at::TensorOptions().dtype(at::kDouble);
  at::Tensor value = torch::randn(sizes, generator, options) *
                     torch::rand(sizes, generator, options).mul_(13).sub_(9).mul_(2.302585).exp_();
  value.masked_fill_(torch::rand(sizes, generator, options).lt(0.1), 0);
  if (index == kMatrix && (step % 2 == 1 || step == 0)) value.zero_();
  if (index == 1 && rank == 0 && step == 7) value.view({-1})[0] = std::numeric_limits<double>::quiet_NaN();
  if (index == kMatrix && step == 8) value.view({-1})[0] = -std::numeric_limits<double>::infinity();
  return value.to(parameter.gradient.scalar_type());
}

void one_step(Side& side, FlatParameters& parameters, const comm::FusionPlan& plan, int rank, int step, double scale) {
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    side.flats[all[i].group]
        .narrow(0, all[i].offset, all[i].tensor.numel())
        .copy_(gradient(all[i], i, rank, step).view({-1}));
  }
  exchange_all(side, plan, scale, step % 2 == 1 ? std::vector<std::size_t>{kMatrix} : std::vector<std::size_t>());
}

void compare(int ranks, const comm::Compression& compression) {
  run_small(ranks, [&](SmallRun& run) {
    comm::Communicator& communicator = run.services.communicator;
    CompressedModel model;
    FlatParameters parameters(*model, communicator);
    std::vector<comm::FusionPlan> plans;
    for (const std::int64_t threshold : {0, 3000, 1 << 20}) {
      plans.push_back(comm::plan_fusion(items_of(parameters), threshold));
    }
    const CompressorOptions options{compression, 5, 1, 0, "gradient compression", "a.key"};
    Side host(false, parameters, communicator, options), tensors(true, parameters, communicator, options);
    // Two that go on from the other's state, as a run that has moved from CPUs to GPUs or back.
    Side moved_host(false, parameters, communicator, options), moved_tensors(true, parameters, communicator, options);
    const double scale = 1.0 / (2 * ranks);
    for (int step = 0; step < kSteps; ++step) {
      const comm::FusionPlan& plan = plans[static_cast<std::size_t>(step) % plans.size()];
      std::vector<Side*> sides{&host, &tensors};
      if (step > kSteps / 2) sides.insert(sides.end(), {&moved_host, &moved_tensors});
      for (Side* const side : sides) {
        one_step(*side, parameters, plan, communicator.rank(), step, scale);
        EXPECT_EQ(side->compressor->operation(), host.compressor->operation());
        for (std::size_t g = 0; g < host.flats.size(); ++g) {
          EXPECT_TRUE(same_values(side->flats[g], host.flats[g])) << "step " << step << ", group " << g;
        }
        const auto expected = host.state(), got = side->state();
        ASSERT_EQ(got.size(), expected.size());
        for (const auto& [name, value] : expected) {
          ASSERT_TRUE(got.contains(name)) << name;
          EXPECT_TRUE(same_values(got.at(name), value)) << name << " in step " << step;
        }
      }
      if (step != kSteps / 2) continue;
      PutState of_host(host.state()), of_tensors(tensors.state());
      moved_tensors.compressor->visit(of_host);
      moved_host.compressor->visit(of_tensors);
    }
    host.compressor->report(run.services);
    const Json expected = run.plan["compression"];
    tensors.compressor->report(run.services);
    const Json got = run.plan["compression"];
    if (communicator.rank() != 0) return;
    for (const char* const key : {"kind", "steps", "compressed_steps", "uncompressed_bytes", "plain_bytes",
                                  "saturated_values", "underflowed_values"}) {
      EXPECT_EQ(got[key], expected[key]) << key;
    }
    const bool blocks = std::holds_alternative<comm::Int8>(compression);  // the last one travels whole
    EXPECT_GE(got["sent_bytes"], expected["sent_bytes"]);
    EXPECT_LE(got["sent_bytes"].get<double>(), expected["sent_bytes"].get<double>() * (blocks ? 1.6 : 1.05));
    if (ranks == 1 || std::holds_alternative<comm::NoCompression>(compression)) return;
    EXPECT_EQ(got["compressed_steps"], kSteps - 1);
    EXPECT_GT(got["uncompressed_bytes"], got["sent_bytes"]);
    if (std::holds_alternative<comm::Fp16>(compression)) {
      EXPECT_GT(got["underflowed_values"], 0);
    }
  });
}

TEST(TensorCompression, GivesTheBitsOfTheOtherCodecs) {
  const std::vector<comm::Compression> all{comm::NoCompression(), comm::Fp16(), comm::Bf16(), comm::Int8(),
                                           comm::TopK{.ratio = 0.05}};
  for (const comm::Compression& compression : all) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "compression " << compression.index() << ", " << ranks << " ranks");
      compare(ranks, compression);
    }
  }
}

// Of an update that is skipped nothing stays, though some ranks have sent what others could not use.
TEST(TensorCompression, ASkippedStepLeavesTheErrorFeedbackAsItWas) {
  for (const comm::Compression& compression :
       {comm::Compression(comm::Fp16()), comm::Compression(comm::Int8()), comm::Compression(comm::TopK{.ratio = 0.05}),
        comm::Compression(comm::PowerSgd{.rank = 2, .warmup_steps = 0})}) {
    run_small(2, [&](SmallRun& run) {
      SCOPED_TRACE(testing::Message() << "compression " << compression.index());
      CompressedModel model;
      FlatParameters parameters(*model, run.services.communicator);
      const auto plan = comm::plan_fusion(items_of(parameters), 3000);
      const CompressorOptions options{compression, 5, 0, 0, "gradient compression", "a.key", /*undoes_steps=*/true};
      Side side(true, parameters, run.services.communicator, options);
      bool changed = false;
      for (int step = 0; step < kSteps; ++step) {
        const auto before = side.state();
        one_step(side, parameters, plan, run.services.communicator.rank(), step, 0.5);
        const auto after = side.state();
        // Steps 7 and 8 have gradients that are not finite, step 4 only one that another rank would have skipped.
        const bool skipped = step == 4 || step == 7 || step == 8;
        side.compressor->undo_step_where(torch::full({}, skipped ? 1.0f : 0.0f));
        for (const auto& [name, value] : side.state()) {
          if (name == "steps") continue;
          EXPECT_TRUE(torch::equal(value, skipped ? before.at(name) : after.at(name))) << name << " in step " << step;
          EXPECT_TRUE(value.isfinite().all().item<bool>()) << name << " in step " << step;
          changed |= skipped && !same_values(before.at(name), after.at(name));
        }
      }
      EXPECT_TRUE(changed) << "there was nothing to undo";
    });
  }
}

at::Tensor small_gradient(const FlatParameters::Parameter& parameter, std::size_t index, int rank, int step,
                          double size) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + 100 * rank) + index);
  const at::Tensor value = torch::randn(parameter.gradient.sizes(), generator, at::TensorOptions().dtype(at::kDouble));
  return value.mul_(size).to(parameter.gradient.scalar_type());
}

std::map<std::string, at::Tensor> state_of(GradientStrategy& strategy) {
  CopyState copy;
  strategy.visit(copy);
  return std::move(copy.values);
}

// Exchanges a few steps, with other buckets in each step if `changing`. Returns the results of all steps, one after the
// other, for each parameter.
std::vector<std::vector<at::Tensor>> exchange_steps(SmallRun& run, const comm::Compression& compression, double size,
                                                    bool changing, std::map<std::string, at::Tensor>& state) {
  comm::Communicator& communicator = run.services.communicator;
  CompressedModel model;
  FlatParameters parameters(*model, communicator);
  FlatOptimizer optimizer(Sgd{.lr = 0.01}, nullptr, parameters);
  FixedScale scale(1.0 / communicator.world_size());
  Compressed strategy(parameters, optimizer, communicator, run.recorder, scale, compression, 5,
                      /*settled_steps=*/1000);
  std::vector<comm::FusionPlan> plans;
  for (const std::int64_t threshold : {1 << 20, 0, 3000}) {
    plans.push_back(comm::plan_fusion(items_of(parameters), threshold));
  }
  const auto all = parameters.parameters();
  const std::vector<std::uint8_t> used(all.size(), 1);
  std::vector<std::vector<at::Tensor>> results(all.size());
  for (int step = 0; step < kSteps; ++step) {
    const comm::FusionPlan& plan = plans[changing ? static_cast<std::size_t>(step) % plans.size() : 0];
    if (step == 0 || changing) strategy.set_plan(plan);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].gradient.copy_(small_gradient(all[i], i, communicator.rank(), step, size));
    }
    std::vector<comm::Work> works;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) works.push_back(strategy.launch(b));
    for (comm::Work& work : works) work.join();
    for (std::size_t i = 0; i < all.size(); ++i) {
      results[i].push_back(all[i].gradient.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
    }
    strategy.update({.used = used});
    EXPECT_TRUE(strategy.exchanged_as_usual());
  }
  state = state_of(strategy);
  return results;
}

// As while buckets are tuned. What was sent and what is held back add up to what was given, on all ranks together; the
// bits are those of one division into buckets, and the same on every rank.
void expect_nothing_lost(int ranks, const comm::Compression& compression) {
  const bool half = std::holds_alternative<comm::Fp16>(compression);
  // float16 has error feedback for values below 2^-14 alone.
  const double size = half ? 1e-6 : 1;
  run_small(ranks, [&](SmallRun& run) {
    std::map<std::string, at::Tensor> held, held_by_one_plan;
    const auto results = exchange_steps(run, compression, size, /*changing=*/true, held);
    const auto expected = exchange_steps(run, compression, size, /*changing=*/false, held_by_one_plan);
    ASSERT_EQ(held.size(), held_by_one_plan.size());
    for (const auto& [name, value] : held) EXPECT_TRUE(torch::equal(value, held_by_one_plan.at(name))) << name;
    CompressedModel model;
    const FlatParameters parameters(*model, run.services.communicator);
    const auto all = parameters.parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      at::Tensor sent = at::zeros_like(results[i].front()), given = at::zeros_like(sent);
      for (int step = 0; step < kSteps; ++step) {
        const at::Tensor& result = results[i][static_cast<std::size_t>(step)];
        EXPECT_TRUE(torch::equal(result, expected[i][static_cast<std::size_t>(step)]))
            << all[i].name << ", step " << step;
        at::Tensor first = result.clone();
        run.services.communicator
            .broadcast(first.data_ptr(), static_cast<std::size_t>(first.numel()), comm::DataType::kFloat64, 0)
            .wait();
        EXPECT_TRUE(torch::equal(result, first)) << all[i].name << " differs between ranks in step " << step;
        sent += result;
        for (int rank = 0; rank < ranks; ++rank) {
          given += small_gradient(all[i], i, rank, step, size).to(at::kDouble) / ranks;
        }
      }
      const auto feedback = held.find("error/" + all[i].name);
      if (feedback != held.end()) {
        at::Tensor values = feedback->second.to(at::kDouble).contiguous();
        run.services.communicator
            .all_reduce(values.data_ptr(), static_cast<std::size_t>(values.numel()), comm::DataType::kFloat64)
            .wait();
        // float16 sums up what the ranks send, the others average it.
        sent += values.view(sent.sizes()) / (half ? 1 : ranks);
      }
      const bool keeps_all = !std::holds_alternative<comm::Bf16>(compression);
      EXPECT_TRUE(!keeps_all || torch::allclose(sent, given, 0, 2e-4 * size)) << all[i].name;
    }
  });
}

TEST(TensorCompression, NewBucketsLoseNothing) {
  const std::vector<comm::Compression> all{comm::Fp16(), comm::Bf16(), comm::Int8(), comm::TopK{.ratio = 0.05},
                                           comm::PowerSgd{.rank = 2, .warmup_steps = 0}};
  for (const comm::Compression& compression : all) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(testing::Message() << "compression " << compression.index() << ", " << ranks << " ranks");
      expect_nothing_lost(ranks, compression);
    }
  }
}

TEST(TensorCompression, LargeValuesAreCutSoThatTheirSumFits) {
  run_small(2, [](SmallRun& run) {
    CompressedModel model;
    FlatParameters parameters(*model, run.services.communicator);
    const auto plan = comm::plan_fusion(items_of(parameters), 1 << 20);
    Side side(true, parameters, run.services.communicator, {comm::Fp16(), 5, 0, 0, "gradient compression", "a.key"});
    const auto all = parameters.parameters();
    const auto& first = *std::find_if(all.begin(), all.end(), [](const auto& one) { return one.name == "long"; });
    const at::Tensor values = side.flats[first.group].narrow(0, first.offset, first.tensor.numel());
    values.fill_(1e6);
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) side.compressor->exchange(plan, b, 0.5).join();
    side.compressor->end_step();
    EXPECT_EQ(values.min().item<float>(), 65504.0f);
    EXPECT_EQ(values.max().item<float>(), 65504.0f);
    side.compressor->report(run.services);
    if (run.services.is_first_rank()) {
      EXPECT_EQ(run.plan["compression"]["saturated_values"], 2 * first.tensor.numel());
    }
  });
}

TEST(TensorCompression, SettingsThatMakeNoSenseAreRefused) {
  run_small(1, [](SmallRun& run) {
    CompressedModel model;
    FlatParameters parameters(*model, run.services.communicator);
    for (const comm::Compression& wrong :
         {comm::Compression(comm::TopK{.ratio = 0}), comm::Compression(comm::TopK{.ratio = 1.5}),
          comm::Compression(comm::PowerSgd{.rank = 0, .warmup_steps = 0})}) {
      EXPECT_THROW(Side(true, parameters, run.services.communicator, {wrong, 5, 0, 0, "compression", "a.key"}),
                   CommError);
    }
  });
}

}  // namespace
}  // namespace dtrain::train
