// Mixed precision and memory formats: what training makes of a model is what the same steps make of it by hand.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "harness/run_ranks.h"
#include "model/precision.h"
#include "small_run.h"
#include "step/training_step.h"

namespace dtrain::train {
namespace {

namespace F = torch::nn::functional;
using config::Precision;

// Layers that compute in bfloat16 and layers that do not, a weight that both kinds of operators take, and, with
// `repeats`, one that is used twice. Autocast casts it once, unless another rank's thread empties its cache, which is
// the process's: so with one rank alone.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm2d(8));
    twice = register_module("twice", torch::nn::Linear(8, 8));
    layer_norm = register_module("layer_norm", torch::nn::LayerNorm(std::vector<std::int64_t>{8}));
    shared = register_parameter("shared", torch::randn({5, 8}) * 0.3);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = batch_norm(conv(x)).relu().mean({2, 3});
    y = twice(repeats ? twice(y).tanh() : y);
    y = layer_norm(y) + F::embedding(torch::arange(x.size(0)).remainder(5), shared);
    return F::linear(y, shared);
  }
  torch::Tensor loss(std::int64_t step, int rank) {
    at::Generator random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + rank));
    const torch::Tensor x = at::randn({6, 3, 7, 7}, random);
    return F::cross_entropy(forward(x), at::randint(5, {6}, random, at::kLong));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d batch_norm{nullptr};
  torch::nn::Linear twice{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::Tensor shared;
  bool repeats = false;
};
TORCH_MODULE(MixedNet);

// The same values on every thread, which have one random stream together.
MixedNet make_net() {
  MixedNet net;
  at::Generator random = at::detail::createCPUGenerator(7);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) parameter.uniform_(-0.4, 0.4, random);
  return net;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

constexpr int kSteps = 6;
constexpr double kRate = 0.05, kMomentum = 0.9;

bool stays_float32(const std::string& name) {
  return name.find("norm") != std::string::npos;
}

// The same steps with libtorch alone: each rank's model computes gradients under libtorch's autocast, they are summed
// in float32 in the order of the ranks, and one optimizer updates float32 values.
std::vector<at::Tensor> by_hand(int ranks, Precision precision, int batches) {
  std::vector<MixedNet> nets;
  for (int rank = 0; rank < ranks; ++rank) {
    nets.push_back(make_net());
    nets.back()->repeats = ranks == 1;
  }
  std::vector<at::Tensor> values = clones(nets[0]->parameters()), momenta;
  for (const at::Tensor& value : values) momenta.push_back(at::zeros_like(value));
  const bool pure = precision == Precision::kPureBfloat16;
  const auto give = [&](MixedNet& net) {
    std::size_t i = 0;
    for (auto& item : net->named_parameters()) {
      const at::Tensor& value = values[i++];
      item.value().set_data(pure && !stays_float32(item.key()) ? value.to(at::kBFloat16) : value.clone());
      item.value().mutable_grad() = at::Tensor();
    }
  };
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      give(nets[rank]);
      for (int batch = 0; batch < batches; ++batch) {
        at::Tensor loss;
        {
          const Autocast autocast(autocast_type(precision), at::kCPU);
          loss = nets[rank]->loss(step * batches + batch, rank);
        }
        loss.backward();
      }
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values.size(); ++i) {
      at::Tensor sum = nets[0]->parameters()[i].grad().to(at::kFloat);
      for (int rank = 1; rank < ranks; ++rank) sum = sum + nets[rank]->parameters()[i].grad();
      const at::Tensor mean =
          (sum * (1.0 / (ranks * batches))).to(nets[0]->parameters()[i].scalar_type()).to(at::kFloat);
      at::_fused_sgd_({values[i]}, {mean}, {momenta[i]}, 0, kMomentum, kRate, 0, false, false, step == 0);
    }
  }
  return values;
}

struct Options {
  int ranks = 1;
  int batches = 1;
  Precision precision = Precision::kFloat32;
  config::ShardedOptimizer sharded = config::ShardedOptimizer::kOff;
  config::MemoryFormat format = config::MemoryFormat::kContiguous;
  comm::Compression compression{};
  Optimizer optimizer = Sgd{.lr = kRate, .momentum = kMomentum};
};

// Every rank's values in the end, as they are written to files.
std::vector<std::vector<at::Tensor>> trained(const Options& o,
                                             const std::function<void(TrainingStep&, int)>& look = {}) {
  std::vector<std::vector<at::Tensor>> results(static_cast<std::size_t>(o.ranks));
  run_small(o.ranks, [&](SmallRun& run) {
    const int rank = run.services.world.rank;
    MixedNet net = make_net();
    net->repeats = o.ranks == 1;
    TrialContext::Wrapped wrapped;
    wrapped.model = net.ptr();
    wrapped.optimizer = o.optimizer;
    StepOptions options;
    options.aggregation_frequency = o.batches;
    options.precision = o.precision;
    options.memory_format = o.format;
    options.strategy.sharded = o.sharded;
    options.strategy.compression = o.compression;
    TrainingStep step(wrapped, run.services, options);
    for (int batch = 0; batch < kSteps * o.batches; ++batch) {
      step.announce(true, {});
      step.begin_batch();
      const Autocast autocast(autocast_type(o.precision), at::kCPU);
      const at::Tensor loss = net->loss(batch, rank);
      const Autocast::Pause in_full(autocast);
      step.backward(loss);
      step.end_batch();
      if (look) look(step, batch);
    }
    const auto values = step.values_in_model();
    results[static_cast<std::size_t>(rank)] = clones(net->parameters());
  });
  return results;
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, ((a[i] - b[i]).abs().max() / b[i].abs().max()).item<double>());
  }
  return largest;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].scalar_type() != b[i].scalar_type() || !torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

TEST(MixedPrecision, TrainsAsLibtorchsAutocastDoes) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16, Precision::kPureBfloat16}) {
    for (const int ranks : {1, 2, 3}) {
      for (const int batches : {1, 2}) {
        const auto expected = by_hand(ranks, precision, batches);
        const auto got = trained({ranks, batches, precision});
        for (const auto& values : got) {
          SCOPED_TRACE(testing::Message() << "precision " << static_cast<int>(precision) << ", " << ranks << " ranks, "
                                          << batches << " batches");
          EXPECT_TRUE(same_bits(values, expected)) << largest_difference(values, expected);
        }
      }
    }
  }
}

TEST(MixedPrecision, GivesTheSameBitsShardedAndReplicated) {
  for (const Precision precision : {Precision::kBfloat16, Precision::kPureBfloat16}) {
    for (const int ranks : {2, 3}) {
      for (const Optimizer& optimizer : {Optimizer(Sgd{.lr = kRate, .momentum = kMomentum}), Optimizer(Lamb{})}) {
        Options options{.ranks = ranks, .precision = precision, .optimizer = optimizer};
        const auto replicated = trained(options);
        options.sharded = config::ShardedOptimizer::kOn;
        const auto sharded = trained(options);
        for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(same_bits(sharded[rank], replicated[0])) << rank;
      }
    }
  }
}

TEST(MixedPrecision, DiffersFromFloat32AndLearnsTheSame) {
  const auto full = trained({2, 1, Precision::kFloat32})[0];
  const auto narrow = trained({2, 1, Precision::kBfloat16})[0];
  const auto pure = trained({2, 1, Precision::kPureBfloat16})[0];
  EXPECT_FALSE(same_bits(full, narrow));
  EXPECT_FALSE(same_bits(narrow, pure));
  EXPECT_LT(largest_difference(narrow, full), 0.2);
  EXPECT_LT(largest_difference(pure, full), 0.2);
}

TEST(MixedPrecision, CompressesGradientsInFloat32) {
  trained(
      {2, 1, Precision::kPureBfloat16, config::ShardedOptimizer::kOff, config::MemoryFormat::kContiguous, comm::Int8()},
      [](TrainingStep& step, int) {
        for (const auto& group : step.parameters().groups()) EXPECT_EQ(group.gradients.scalar_type(), at::kFloat);
      });
}

TEST(MixedPrecision, ComputesInTheShadowWhereTheBitsStay) {
  trained({2, 1, Precision::kBfloat16}, [](TrainingStep& step, int) {
    for (const auto& parameter : step.parameters().parameters()) {
      const bool narrow = parameter.name.starts_with("conv") || parameter.name.starts_with("twice");
      EXPECT_EQ(parameter.in_shadow, narrow) << parameter.name;
      EXPECT_EQ(parameter.tensor.scalar_type(), narrow ? at::kBFloat16 : at::kFloat) << parameter.name;
      const at::Tensor values = step.parameters().values_of(parameter);
      EXPECT_EQ(values.scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::equal(parameter.tensor.detach(), values.to(parameter.tensor.scalar_type()))) << parameter.name;
    }
  });
}

TEST(MixedPrecision, NormalisationStaysInFloat32WhereAllElseIsNarrow) {
  trained({3, 1, Precision::kPureBfloat16}, [](TrainingStep& step, int) {
    for (const auto& parameter : step.parameters().parameters()) {
      const at::ScalarType type = stays_float32(parameter.name) ? at::kFloat : at::kBFloat16;
      EXPECT_EQ(parameter.tensor.scalar_type(), type) << parameter.name;
      EXPECT_EQ(parameter.gradient.scalar_type(), type) << parameter.name;
      EXPECT_TRUE(torch::equal(parameter.tensor.detach(), step.parameters().values_of(parameter).to(type)));
    }
  });
}

TEST(MixedPrecision, RefusesAModelThatIsNarrowAlready) {
  run_small(1, [](SmallRun& run) {
    MixedNet net = make_net();
    net->to(at::kBFloat16);
    EXPECT_THROW(FlatParameters(*net, run.services.communicator), ConfigError);
  });
}

TEST(MemoryFormat, ChangesTheOrderOfConvolutionWeightsAlone) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16, Precision::kPureBfloat16}) {
    const auto contiguous = trained({2, 1, precision});
    const auto last = trained(
        {2, 1, precision, config::ShardedOptimizer::kOff, config::MemoryFormat::kChannelsLast},
        [](TrainingStep& step, int) {
          for (const auto& parameter : step.parameters().parameters()) {
            const bool moved = parameter.name == "conv.weight";
            EXPECT_EQ(parameter.tensor.dim() == 4 && parameter.tensor.stride(1) == 1, moved);
            EXPECT_TRUE(step.parameters().values_of(parameter).is_contiguous());
            EXPECT_TRUE(torch::equal(parameter.tensor.detach(),
                                     step.parameters().values_of(parameter).to(parameter.tensor.scalar_type())));
          }
        });
    const double most = precision == Precision::kFloat32 ? 1e-4 : 0.1;
    EXPECT_LT(largest_difference(last[0], contiguous[0]), most);
    EXPECT_TRUE(same_bits(last[0], last[1]));
  }
}

// The first run measures and remembers; the next ones go the same way to the same bits.
TEST(MemoryFormat, IsRememberedWithTheTurnsThatFoundIt) {
  const TemporaryFolder folder;
  const auto run_once = [&](std::vector<bool>* formats) {
    std::vector<at::Tensor> result;
    run_small(2, [&](SmallRun& run) {
      MixedNet net = make_net();
      TrialContext::Wrapped wrapped;
      wrapped.model = net.ptr();
      wrapped.optimizer = Sgd{.lr = kRate};
      StepOptions options;
      options.memory_format = config::MemoryFormat::kAuto;
      options.fusion.cache_folder = folder.path();
      TrainingStep step(wrapped, run.services, options);
      const bool first = run.services.is_first_rank();
      for (int batch = 0; batch < 30; ++batch) {
        if (first) formats->push_back(net->conv->weight.stride(1) == 1);
        step.announce(true, {});
        step.begin_batch();
        step.backward(net->loss(batch, run.services.world.rank));
        step.end_batch();
      }
      if (!first) return;
      EXPECT_EQ(run.plan.at("memory_format").at("turns").size(), 4u);
      EXPECT_EQ(run.plan.at("memory_format").at("format"), formats->back() ? "channels_last" : "contiguous");
      result = clones(net->parameters());
    });
    return result;
  };
  std::vector<bool> formats, again, other;
  const auto weights = run_once(&formats);
  EXPECT_EQ(std::count(formats.begin() + 2, formats.begin() + 22, true), 10);
  EXPECT_TRUE(same_bits(run_once(&again), weights));
  EXPECT_EQ(again, formats);
  // What is remembered decides, not the clock.
  for (const auto& file : std::filesystem::directory_iterator(folder.path() / "memory_format")) {
    Json json = read_json(file.path());
    json["format"] = formats.back() ? "contiguous" : "channels_last";
    write_file_atomic(file.path(), json.dump());
  }
  run_once(&other);
  EXPECT_NE(other.back(), formats.back());
}

TEST(NarrowUse, TellsWhatAutocastAlwaysCasts) {
  run_small(1, [](SmallRun& run) {
    MixedNet net = make_net();
    FlatParameters parameters(*net, run.services.communicator, {.shadow = at::kBFloat16});
    NarrowUse use(parameters);
    {
      const Autocast autocast(at::kBFloat16, at::kCPU);
      const NarrowUse::Watching watching(use);
      net->conv(torch::randn({1, 3, 4, 4}));
      net->conv(torch::randn({1, 3, 4, 4}));  // casts what it cast before
      net->twice->bias.norm();
      net->twice(torch::randn({1, 8}));
      F::linear(torch::randn({1, 8}), net->shared);
      F::linear(torch::randn({1, 8}), net->shared);  // casts another view
    }
    net->layer_norm(torch::randn({1, 8}));  // not watched
    const auto all = parameters.parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool narrow = all[i].name.starts_with("conv") || all[i].name == "twice.weight";
      EXPECT_EQ(use.only_narrow(i), narrow) << all[i].name;
    }
  });
}

// What a model writes into a weight that it computes with in bfloat16 becomes the value that training updates.
TEST(MixedPrecision, TakesOverWhatTheModelWrites) {
  run_small(2, [](SmallRun& run) {
    MixedNet net = make_net();
    TrialContext::Wrapped wrapped;
    wrapped.model = net.ptr();
    wrapped.optimizer = Sgd{.lr = 0.0};
    StepOptions options;
    options.precision = Precision::kPureBfloat16;
    options.strategy.sharded = config::ShardedOptimizer::kOff;
    TrainingStep step(wrapped, run.services, options);
    for (int batch = 0; batch < 4; ++batch) {
      step.announce(true, {});
      step.begin_batch();
      const Autocast autocast(at::kBFloat16, at::kCPU);
      const at::Tensor loss = net->loss(batch, run.services.world.rank);
      const Autocast::Pause in_full(autocast);
      step.backward(loss);
      if (batch == 2) {
        const at::NoGradGuard no_grad;
        net->twice->bias.fill_(3);
      }
      step.end_batch();
    }
    EXPECT_TRUE(torch::equal(net->twice->bias.detach().to(at::kFloat), torch::full({8}, 3.0)));
    const auto values = step.values_in_model();
    EXPECT_TRUE(torch::equal(net->twice->bias.detach(), torch::full({8}, 3.0)));
  });
}

}  // namespace
}  // namespace dtrain::train
