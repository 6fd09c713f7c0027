// Weights as files, also hostile ones; metrics over ranks; learning rate schedules; the comparison of models at start.
#include <gtest/gtest.h>

#include <fstream>

#include <torch/torch.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/train/optimizer.h"
#include "harness/run_ranks.h"
#include "loop/metrics.h"
#include "loop/validation.h"
#include "model/weights.h"
#include "step/checks.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  fs::path write(const std::string& content) { return folder_.write("file", content); }
  // A file with this header, and `bytes` bytes of tensors.
  fs::path write(const std::string& header, std::size_t bytes) {
    const std::uint64_t length = header.size();
    return write(std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(bytes, '\0'));
  }
  void expect_refused(const fs::path& path, const std::string& why) {
    try {
      read_safetensors(path);
      FAIL() << "was read, though: " << why;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }

  const TemporaryFolder folder_;
};

TEST_F(Files, SafetensorsComeBackAsTheyWere) {
  const auto path = folder_ / "w.safetensors";
  const NamedTensors tensors{{"a", torch::randn({3, 5})},
                             {"b.c", torch::randn({4, 6}, torch::kFloat64).t()},
                             {"scalar", torch::tensor(3.5f)},
                             {"none", torch::empty({0, 4})},
                             {"half", torch::randn({3}).to(torch::kHalf)},
                             {"bf16", torch::randn({3}).to(torch::kBFloat16)},
                             {"long", torch::arange(7)},
                             {"byte", torch::arange(7).to(torch::kByte)},
                             {"flag", torch::tensor({true, false})}};
  write_safetensors(path, tensors, {{"format", "pt"}});
  const auto back = read_safetensors(path);
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(back.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(back.at(name), tensor)) << name;
  }
  EXPECT_THROW(write_safetensors(path, {{"complex", torch::zeros({2}, torch::kComplexFloat)}}), Error);
  EXPECT_EQ(read_safetensors(path).size(), tensors.size()) << "the old file must survive a failed write";
}

TEST_F(Files, EveryTruncationIsRefused) {
  const auto path = folder_ / "w.safetensors";
  write_safetensors(path, {{"a", torch::randn({2, 2})}, {"b", torch::randn({3})}});
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(read_safetensors(write(whole.substr(0, size))), DataError) << size;
  }
}

TEST_F(Files, HostileSafetensorsAreRefused) {
  expect_refused(write(std::string(8, '\xff') + "{}"), "past the end");
  expect_refused(write("{\"a\":", 0), "parse error");
  expect_refused(write("[1, 2]", 0), "");
  expect_refused(write(std::string(100'000, '['), 0), "");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2]}})", 8), "data_offsets");
  expect_refused(write(R"({"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}})", 8), "F99");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}})", 8),
                 "-1 where a whole number");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}})", 8),
                 "impossible");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})", 8), "4 to 12");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}})", 8), "'a'");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})", 8), "'a'");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8), "its shape needs 12");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}})", 8), "'a'");
  // Two tensors in the same bytes, bytes of nobody, and the same name twice.
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                           "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
                       12),
                 "overlap");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}})", 16), "belong to no tensor");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 12), "belong to no tensor");
}

TEST_F(Files, AMissingFileIsNamed) {
  EXPECT_THROW(read_safetensors(folder_ / "nowhere"), Error);
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width) : layer(register_module("layer", torch::nn::Linear(4, width))) {
    tied = register_parameter("tied", layer->weight);
    count = register_buffer("count", torch::arange(3));
  }
  torch::nn::Linear layer;
  torch::Tensor tied, count;
};
TORCH_MODULE(Net);

TEST_F(Files, WeightsAreSavedUnderEachName) {
  const auto path = folder_ / "w.safetensors";
  Net net(3);
  save_weights(*net, path);
  const auto tensors = read_safetensors(path);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_TRUE(torch::equal(tensors.at("tied"), tensors.at("layer.weight")));
  Net other(3);
  load_weights(*other, {.file = path});
  EXPECT_TRUE(torch::equal(other->layer->weight, net->layer->weight));
  EXPECT_TRUE(torch::equal(other->layer->bias, net->layer->bias));
  EXPECT_EQ(other->tied.data_ptr(), other->layer->weight.data_ptr());
}

TEST_F(Files, WeightsOfAnotherModelAreRefusedWithEveryDifference) {
  const auto path = folder_ / "w.safetensors";
  Net net(3);
  const auto before = net->layer->bias.clone();
  write_safetensors(path, {{"layer.weight", torch::zeros({3, 4})},
                           {"layer.bias", torch::zeros({5})},
                           {"surplus", torch::zeros({1})},
                           {"count", torch::zeros({3}, torch::kLong)}});
  try {
    load_weights(*net, {.file = path});
    FAIL() << "was accepted";
  } catch (const ConfigError& error) {
    for (const char* part : {"'layer.bias' is [5]", "'surplus'"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(Files, WeightsOfAnotherTypeAreRefused) {
  const auto path = folder_ / "w.safetensors";
  Net net(3);
  auto weights = torch::zeros({3, 4}, torch::kFloat64);
  write_safetensors(path, {{"layer.weight", weights},
                           {"tied", weights},
                           {"layer.bias", torch::zeros({3})},
                           {"count", torch::zeros({3}, torch::kInt32)}});
  try {
    load_weights(*net, {.file = path});
    FAIL() << "was accepted";
  } catch (const ConfigError& error) {
    for (const char* part : {"'layer.weight' is float64 in the file and float32 in the model",
                             "'count' is int32 in the file and int64 in the model"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(std::string(error.what()).find("'layer.bias'"), std::string::npos) << error.what();
  }
}

TEST(Validation, NoNumberIsNeverTheBest) {
  const double nan = std::nan("");
  for (const bool smaller : {true, false}) {
    EXPECT_FALSE(is_better(nan, std::nullopt, smaller));
    EXPECT_FALSE(is_better(nan, 0.5, smaller));
    EXPECT_TRUE(is_better(0.5, std::nullopt, smaller));
    EXPECT_EQ(is_better(0.4, 0.5, smaller), smaller);
    EXPECT_EQ(is_better(0.6, 0.5, smaller), !smaller);
  }
}

TEST(EvaluationMode, LeavesEveryModuleAsItWas) {
  torch::nn::Sequential inner(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  torch::nn::Module model;
  model.register_module("inner", inner);
  model.register_module("dropout", torch::nn::Dropout());
  inner[1]->eval();
  {
    const EvaluationMode evaluation(model);
    EXPECT_FALSE(model.is_training());
    for (const auto& module : model.modules(false)) EXPECT_FALSE(module->is_training());
  }
  EXPECT_TRUE(model.is_training());
  for (const auto& module : model.modules(false))
    EXPECT_EQ(module->is_training(), module != inner[1]) << module->name();
}

TEST(MetricReducer, WeighsBatchesAndRanksBySamples) {
  const int ranks = 3;
  auto communicators = test::make_thread_communicators(ranks, test::TestWorld(ranks).communicator_options());
  test::run_control_ranks(test::TestWorld(ranks), [&](comm::ControlPlane& control) {
    const int rank = control.world().rank;
    auto& communicator = *communicators[rank];
    MetricReducer reducer("training", control, communicator);
    for (int round = 0; round < 2; ++round) {
      // Rank 2 has no batch; rank 0 has two of different sizes.
      if (rank == 0) {
        reducer.add({{"loss", 1.0}, {"accuracy", torch::tensor(0.5)}}, 4);
        reducer.add({{"loss", 2.0}, {"accuracy", torch::tensor(0.25)}}, 1);
      }
      if (rank == 1) reducer.add({{"loss", 4.0}, {"accuracy", 1.0}}, 5);
      const auto reduced = reducer.reduce();
      EXPECT_EQ(reduced.samples, 10);
      ASSERT_EQ(reduced.means.size(), 2u);
      EXPECT_DOUBLE_EQ(reduced.means.at("loss"), (4 * 1.0 + 1 * 2.0 + 5 * 4.0) / 10);
      EXPECT_DOUBLE_EQ(reduced.means.at("accuracy"), (4 * 0.5 + 1 * 0.25 + 5 * 1.0) / 10);
    }
    EXPECT_EQ(reducer.reduce().samples, 0);
    reducer.add({{"loss", 1.0 + rank}}, 2);
    const auto mine = MetricReducer::local_means(reducer.take());
    EXPECT_EQ(mine.samples, 2);
    EXPECT_DOUBLE_EQ(mine.means.at("loss"), 1.0 + rank);
  });
}

TEST(MetricReducer, WeighsBatchesByTheirItems) {
  const int ranks = 3;
  auto communicators = test::make_thread_communicators(ranks, test::TestWorld(ranks).communicator_options());
  test::run_control_ranks(test::TestWorld(ranks), [&](comm::ControlPlane& control) {
    const int rank = control.world().rank;
    MetricReducer reducer("validation", control, *communicators[rank]);
    const auto over = [](double value, double items) { return MetricValue(value).mean_over(items); };
    if (rank == 0) reducer.add({{"loss", over(1, 2.5)}, {"none", over(1, 0)}, {"samples", 1.0}}, 4);
    if (rank == 0) reducer.add({{"loss", over(std::nan(""), 0)}, {"none", over(1, 0)}, {"samples", 2.0}}, 1);
    if (rank == 1) reducer.add({{"loss", over(4, 0.5)}, {"none", over(1, 0)}, {"samples", 4.0}}, 5);
    const auto reduced = reducer.reduce();
    EXPECT_EQ(reduced.samples, 10);
    EXPECT_DOUBLE_EQ(reduced.means.at("loss"), (2.5 * 1 + 0.5 * 4) / 3);
    EXPECT_DOUBLE_EQ(reduced.means.at("samples"), (4 * 1.0 + 1 * 2.0 + 5 * 4.0) / 10);
    EXPECT_TRUE(std::isnan(reduced.means.at("none")));
  });
  EXPECT_THROW(MetricValue(1.0).mean_over(-1), Error);
  EXPECT_THROW(MetricValue(1.0).mean_over(std::nan("")), Error);
  EXPECT_THROW(MetricValue(1.0, Reduction::kSum).mean_over(1), Error);
}

TEST(MetricReducer, NamesTheMetricThatARankLacks) {
  auto communicators = test::make_thread_communicators(2, test::TestWorld(2).communicator_options());
  std::atomic<int> refused{0};
  test::run_control_ranks(test::TestWorld(2), [&](comm::ControlPlane& control) {
    const int rank = control.world().rank;
    MetricReducer reducer("validation", control, *communicators[rank]);
    reducer.add({{"loss", 1.0}}, 1);
    if (rank == 1) reducer.add({{"accuracy", 1.0}, {"loss", 1.0}}, 1);
    try {
      reducer.reduce();
    } catch (const Error& error) {
      const std::string text = error.what();
      if (text.find("'accuracy' is missing on rank 0") != std::string::npos) ++refused;
    }
  });
  EXPECT_EQ(refused, 2);
}

TEST(CompareModels, NamesParameterAndRankOnEveryRank) {
  std::atomic<int> refused{0};
  test::run_control_ranks(test::TestWorld(3), [&](comm::ControlPlane& control) {
    const Net net(control.world().rank == 1 ? 5 : 3);
    try {
      compare_models(*net, control);
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      if (text.find("rank 1 has parameter 'tied = layer.weight' Float [5, 4] where rank 0 has") != std::string::npos &&
          text.find("rank 2") == std::string::npos) {
        ++refused;
      } else {
        ADD_FAILURE() << text;
      }
    }
  });
  EXPECT_EQ(refused, 3);
}

TEST(CompareModels, SeesADifferenceInTypeOrFreezing) {
  for (const bool freeze : {true, false}) {
    std::atomic<int> refused{0};
    test::run_control_ranks(test::TestWorld(2), [&](comm::ControlPlane& control) {
      Net net(3);
      if (control.world().rank == 1 && freeze) net->layer->bias.set_requires_grad(false);
      if (control.world().rank == 1 && !freeze) net->to(torch::kFloat64);
      try {
        compare_models(*net, control);
      } catch (const ConfigError&) {
        ++refused;
      }
    });
    EXPECT_EQ(refused, 2);
  }
}

TEST(CompareModels, SeesADifferenceInLayout) {
  std::atomic<int> refused{0};
  test::run_control_ranks(test::TestWorld(2), [&](comm::ControlPlane& control) {
    torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(2, 4, 3));
    if (control.world().rank == 1) {
      convolution->weight.set_data(convolution->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
    try {
      compare_models(*convolution, control);
    } catch (const ConfigError& error) {
      EXPECT_NE(
          std::string(error.what()).find("'weight' Float [4, 2, 3, 3] with strides [18, 1, 6, 2] where rank 0 has"),
          std::string::npos)
          << error.what();
      ++refused;
    }
  });
  EXPECT_EQ(refused, 2);
}

TEST(BroadcastModel, DoesNotDependOnLayouts) {
  test::run_communicator_ranks(test::TestWorld(2), "thread", [&](comm::Communicator& communicator) {
    torch::nn::Module model;
    auto buffer = torch::arange(12, torch::kFloat).view({3, 4}) * (1 - communicator.rank());
    if (communicator.rank() == 1) buffer = buffer.t().contiguous().t();
    model.register_buffer("buffer", buffer);
    broadcast_buffers(model, communicator);
    EXPECT_TRUE(torch::equal(buffer, torch::arange(12, torch::kFloat).view({3, 4})));
  });
}

TEST(BroadcastModel, GivesEveryRankTheBitsOfRankZero) {
  std::vector<std::map<std::string, at::Tensor>> values(3);
  test::run_communicator_ranks(test::TestWorld(3), "thread", [&](comm::Communicator& communicator) {
    Net net(3);
    {
      const at::NoGradGuard no_grad;
      net->layer->bias.fill_(communicator.rank() + 0.1);
      net->count.fill_(communicator.rank() + 5);
    }
    broadcast_model(*net, communicator);
    values[communicator.rank()] = {{"bias", net->layer->bias.detach().clone()}, {"count", net->count.clone()}};
  });
  for (const auto& value : values) {
    EXPECT_TRUE(torch::equal(value.at("bias"), torch::full({3}, 0.1f)));
    EXPECT_TRUE(torch::equal(value.at("count"), torch::full({3}, 5, torch::kLong)));
  }
}

TEST(LrSchedules, CountOptimizerSteps) {
  EXPECT_EQ(lr::constant()(1000), 1);
  const auto step = lr::step(10, 0.5);
  EXPECT_EQ(step(0), 1);
  EXPECT_EQ(step(9), 1);
  EXPECT_EQ(step(10), 0.5);
  EXPECT_EQ(step(29), 0.25);
  const auto cosine = lr::warmup_cosine(4, 12, 0.1);
  EXPECT_DOUBLE_EQ(cosine(0), 0.25);
  EXPECT_DOUBLE_EQ(cosine(3), 1);
  EXPECT_DOUBLE_EQ(cosine(4), 1);
  EXPECT_DOUBLE_EQ(cosine(8), 0.55);
  EXPECT_NEAR(cosine(12), 0.1, 1e-15);
  EXPECT_NEAR(cosine(500), 0.1, 1e-15);
  const auto risen = lr::warmup(4, lr::multi_step({2, 3}, 0.5));
  EXPECT_EQ(risen(0), 0.25);
  EXPECT_EQ(risen(5), 1);
  EXPECT_EQ(risen(6), 0.5);
  EXPECT_EQ(risen(7), 0.25);
  EXPECT_EQ(lr::warmup(0, lr::constant())(0), 1);
  const auto halved_by_epoch = lr::by_epoch(10, lr::step(1, 0.5));
  EXPECT_EQ(halved_by_epoch(9), 1);
  EXPECT_EQ(halved_by_epoch(10), 0.5);
  EXPECT_EQ(halved_by_epoch(25), 0.25);
  EXPECT_THROW(lr::by_epoch(0, lr::constant()), ConfigError);
  const auto cycle = lr::one_cycle(11, 2.0 / 11, 4, 10);
  EXPECT_DOUBLE_EQ(cycle(0), 0.25);
  EXPECT_DOUBLE_EQ(cycle(1), 1);
  EXPECT_DOUBLE_EQ(cycle(10), 0.025);
  EXPECT_DOUBLE_EQ(cycle(999), 0.025);
  EXPECT_EQ(lr::linear(4, 2, 1)(1), 1.75);
  EXPECT_EQ(lr::linear(4, 2, 1)(9), 1);
  EXPECT_EQ(lr::polynomial(4, 2, 0.5)(2), 0.625);
  EXPECT_THROW(lr::step(0, 0.5), ConfigError);
  EXPECT_THROW(lr::multi_step({3, 2}, 0.5), ConfigError);
  EXPECT_THROW(lr::one_cycle(0), ConfigError);
  EXPECT_THROW(lr::cosine(0), ConfigError);
  EXPECT_THROW(lr::warmup(-1, lr::constant()), ConfigError);
  EXPECT_THROW(lr::warmup_cosine(5, 5), ConfigError);
}

}  // namespace
}  // namespace dtrain::train
