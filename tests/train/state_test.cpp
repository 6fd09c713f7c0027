// What changes in a step and matters for the next one is visited: training that goes on from visited state gives the
// same bits as training that was never interrupted.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "../harness/temporary_folder.h"
#include "checkpoint/own_state.h"
#include "checkpoint/restore.h"
#include "checkpoint/state_image.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "loop/checkpoint_schedule.h"
#include "model/precision.h"
#include "no_common_memory.h"
#include "small_run.h"
#include "state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {
namespace {

// Entries as text (numbers, texts) or as tensors. Collects them; a second one puts them back.
struct State {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> texts;
};

class Collector final : public StateVisitor {
 public:
  State state;
  bool replaces() const override { return false; }

 protected:
  void on_tensor(const std::string& path, at::Tensor value) override { add(path, value.clone()); }
  void on_number(const std::string& path, std::int64_t& value) override { add(path, std::to_string(value)); }
  void on_real(const std::string& path, double& value) override { add(path, std::to_string(value)); }
  void on_reals(const std::string& path, std::vector<float>& values) override { add(path, torch::tensor(values)); }
  void on_text(const std::string& path, std::string& value) override { add(path, "'" + value); }

 private:
  void add(const std::string& path, const at::Tensor& value) {
    EXPECT_TRUE(state.tensors.emplace(path, value).second) << path << " twice";
  }
  void add(const std::string& path, const std::string& value) {
    EXPECT_TRUE(state.texts.emplace(path, value).second) << path << " twice";
  }
};

class Restorer final : public StateVisitor {
 public:
  explicit Restorer(const State& state) : state_(state) {}
  bool replaces() const override { return true; }

 protected:
  void on_tensor(const std::string& path, at::Tensor value) override {
    const at::NoGradGuard no_grad;
    value.copy_(state_.tensors.at(path));
  }
  void on_number(const std::string& path, std::int64_t& value) override { value = std::stoll(state_.texts.at(path)); }
  void on_real(const std::string& path, double& value) override { value = std::stod(state_.texts.at(path)); }
  void on_reals(const std::string& path, std::vector<float>& values) override {
    const at::Tensor& tensor = state_.tensors.at(path);
    values.assign(tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel());
  }
  void on_text(const std::string& path, std::string& value) override { value = state_.texts.at(path).substr(1); }

 private:
  const State& state_;
};

struct StatefulNetImpl : torch::nn::Module {
  StatefulNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 40));
    norm = register_module("norm", torch::nn::BatchNorm1d(40));
    last = register_module("last", torch::nn::Linear(40, 3));
  }
  at::Tensor loss(std::int64_t batch, int rank) {
    const auto x = (torch::arange(48).reshape({8, 6}) * (0.37 + 0.1 * rank) + static_cast<double>(batch)).sin();
    return last(norm(first(x)).relu()).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(StatefulNet);

StatefulNet copy_of(const StatefulNet& original) {
  StatefulNet net;
  const at::NoGradGuard no_grad;
  const auto parameters = original->named_parameters();
  for (auto& item : net->named_parameters()) item.value().copy_(parameters[item.key()]);
  return net;
}

// Whole windows. The step after them is compressed; later ones are not, to compare with.
constexpr int kBatchesBefore = 9, kBatchesAfter = 12;

struct StateCase {
  std::string name;
  StepOptions options;
  std::vector<std::string> changing;  // paths, or their beginnings, of which some entry changes in every step
  int ranks = 2;
  bool one_copy = true;
  int before = kBatchesBefore;
};

// `world` ranks divide the bytes; what they do not share is rank 0's.
void write_part(const std::filesystem::path& path, const FileImage& image, int rank, int world) {
  std::vector<std::byte> bytes(image.bytes());
  if (rank > 0) {
    const std::string there = read_file(path);
    ASSERT_EQ(there.size(), bytes.size()) << path << ": the ranks lay it out differently";
    std::memcpy(bytes.data(), there.data(), there.size());
  }
  DeviceCopies from_device;
  image.write_header(bytes.data());
  const auto end_of = [&](int part) {
    return image.data_bytes() * static_cast<std::size_t>(part) / static_cast<std::size_t>(world);
  };
  image.write_data(bytes.data(), end_of(rank), end_of(rank + 1), rank == 0, from_device);
  write_file_atomic(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// As the ranks and the saver leave them, but for the checksums.
void write_checkpoint(const std::filesystem::path& folder, TrainingStep& step, comm::ControlPlane& control) {
  const comm::World& world = control.world();
  const TensorNames names{.tied = {}, .left_out = {"last.bias", "norm.running_mean"}};  // lie in other files
  const StateImage image({.rank = world.rank, .shared = step.state_is_shared(), .names = names},
                         [&](StateVisitor& visitor) { visitor.part("step", step); });
  write_part(folder / checkpoints::rank_file(world.rank), image.own(), 0, 1);
  for (int turn = 0; turn < world.size; ++turn) {
    if (turn == world.rank) {
      write_part(folder / checkpoints::kModelFile, image.model(), turn, world.size);
      write_part(folder / checkpoints::kOptimizerFile, image.optimizer(), turn, world.size);
    }
    control.barrier("part " + std::to_string(turn));
  }
  if (world.rank != 0) return;
  write_file_atomic(folder / checkpoints::kManifestFile, Json{{"about", {{"world_size", world.size}}}}.dump());
}

// A run of its own on every rank; from `start` or the checkpoint `from`, if there is one, or from the model's values.
// Writes a checkpoint to `to` at its end.
std::vector<State> train_from(const StateCase& c, const StatefulNet& original, const std::vector<State>* start,
                              std::int64_t first, std::int64_t batches, const std::filesystem::path& from = {},
                              const std::filesystem::path& to = {}) {
  std::vector<State> result(static_cast<std::size_t>(c.ranks));
  run_small(c.ranks, [&](SmallRun& run) {
    NoCommonMemory without(run.services.communicator);
    const RunServices apart{run.services.world,      run.services.control, without,          without,
                            run.services.recorder,   run.services.clock,   run.services.log, run.services.update_plan,
                            run.services.write_event};
    const int rank = run.services.world.rank;
    StatefulNet model = copy_of(original);
    TrialContext::Wrapped wrapped;
    wrapped.model = model.ptr();
    wrapped.optimizer = AdamW{.lr = 0.01};
    wrapped.schedule = lr::step(3, 0.7);
    TrainingStep step(wrapped, c.one_copy ? run.services : apart, c.options);
    if (start) {
      Restorer restorer((*start)[static_cast<std::size_t>(rank)]);
      step.visit(restorer);
    }
    if (!from.empty()) {
      StateReader reader(from, rank, c.ranks, step.state_is_shared());
      reader.restore([&](StateVisitor& visitor) { visitor.part("step", step); });
      EXPECT_EQ(reader.missing(), std::vector<std::string>{});
    }
    for (std::int64_t batch = first; batch < first + batches; ++batch) {
      step.announce(true, {});
      step.begin_batch();
      const Autocast autocast(autocast_type(c.options.precision), at::kCPU);
      const at::Tensor loss = model->loss(batch, rank);
      const Autocast::Pause in_full(autocast);
      step.backward(loss);
      step.end_batch();
    }
    Collector collector;
    step.visit(collector);
    result[static_cast<std::size_t>(rank)] = std::move(collector.state);
    if (!to.empty()) write_checkpoint(to, step, run.services.control);
  });
  return result;
}

StepOptions options_with(const std::function<void(StepOptions&)>& change) {
  StepOptions options;
  options.fusion.threshold_bytes = 500;
  options.strategy.sharded = config::ShardedOptimizer::kOff;
  options.strategy.seed = 5;
  change(options);
  return options;
}

std::vector<StateCase> state_cases() {
  const std::vector<std::string> usual{
      "parameters/first.weight", "model/buffers/norm.running_mean", "optimizer/steps",    "optimizer/updates/last.bias",
      "optimizer/exp_avg/",      "optimizer/exp_avg_sq/",           "window/rounds_begun"};
  const auto and_also = [&](std::vector<std::string> more) {
    more.insert(more.end(), usual.begin(), usual.end());
    return more;
  };
  std::vector<StateCase> cases{
      {"replicated", options_with([](auto&) {}), usual},
      {"the same program", options_with([](auto& o) { o.same_program = true; }), usual},
      {"one rank", options_with([](auto&) {}), usual, 1},
      {"clipped windows", options_with([](auto& o) {
         o.aggregation_frequency = 3;
         o.max_gradient_norm = 0.01;
       }),
       usual},
      {"bf16", options_with([](auto& o) { o.precision = config::Precision::kBfloat16; }), usual},
      {"pure bf16, in windows", options_with([](auto& o) {
         o.precision = config::Precision::kPureBfloat16;
         o.aggregation_frequency = 2;
         o.max_gradient_norm = 0.01;
       }),
       usual, 3},
      {"pure bf16 on ranks of their own parts", options_with([](auto& o) {
         o.precision = config::Precision::kPureBfloat16;
         o.strategy.sharded = config::ShardedOptimizer::kOn;
       }),
       usual, 3, false},
      {"bf16, one copy", options_with([](auto& o) {
         o.precision = config::Precision::kBfloat16;
         o.strategy.sharded = config::ShardedOptimizer::kOn;
       }),
       usual, 3},
      {"an open window", options_with([](auto& o) { o.aggregation_frequency = 3; }), usual, 2, true, 10},
      {"an open window on a rank of its own parts", options_with([](auto& o) {
         o.aggregation_frequency = 4;
         o.strategy.sharded = config::ShardedOptimizer::kOn;
       }),
       usual, 3, false, 11},
      {"one copy", options_with([](auto& o) { o.strategy.sharded = config::ShardedOptimizer::kOn; }), usual},
      {"parts", options_with([](auto& o) { o.strategy.sharded = config::ShardedOptimizer::kOn; }), usual, 2, false},
      {"alone", options_with([](auto& o) { o.alone = true; }), usual}};
  const std::vector<std::pair<comm::Compression, std::string>> codecs{
      {comm::Fp16(), "mode/strategy/steps"},
      {comm::Bf16(), "mode/strategy/steps"},
      {comm::Int8(), "mode/strategy/error/"},
      {comm::PowerSgd{.rank = 2, .warmup_steps = 2}, "mode/strategy/q/"},
      {comm::TopK{.ratio = 0.1}, "mode/strategy/error/"}};
  for (const auto& [codec, path] : codecs) {
    cases.push_back({word_of(codec), options_with([&, codec = codec](auto& o) { o.strategy.compression = codec; }),
                     and_also({path, "mode/strategy/steps"})});
  }
  for (const int inner : {1, 5}) {  // 5: in the middle between two meetings
    config::LocalSgd local{.inner_steps = inner, .outer_lr = 0.6, .outer_momentum = 0.8, .compression = {}};
    local.compression = comm::Int8();
    std::vector<std::string> changing = usual;
    if (inner == 1) {
      changing = and_also({"mode/meetings/meetings", "mode/meetings/start/", "mode/meetings/momentum/",
                           "mode/meetings/error/", "mode/meetings/steps"});
    } else {
      changing = and_also({"mode/inner_steps"});
    }
    cases.push_back(
        {"local steps, " + std::to_string(inner), options_with([&](auto& o) { o.local_sgd = local; }), changing});
  }
  return cases;
}

std::set<std::string> changed_paths(const State& before, const State& after) {
  std::set<std::string> result;
  for (const auto& [path, value] : before.tensors) {
    if (!after.tensors.contains(path)) result.insert(path);
  }
  for (const auto& [path, value] : before.texts) {
    if (!after.texts.contains(path)) result.insert(path);
  }
  for (const auto& [path, value] : after.tensors) {
    if (!torch::equal(value, before.tensors.at(path))) result.insert(path);
  }
  for (const auto& [path, value] : after.texts) {
    if (value != before.texts.at(path)) result.insert(path);
  }
  return result;
}

TEST(State, IsEnoughToGoOnFrom) {
  torch::manual_seed(21);
  const StatefulNet original;
  for (const StateCase& c : state_cases()) {
    SCOPED_TRACE(c.name);
    const TemporaryFolder folder;
    const auto before = train_from(c, original, nullptr, 0, c.before, {}, folder.path());
    const auto whole = train_from(c, original, nullptr, 0, c.before + kBatchesAfter);
    const auto resumed = train_from(c, original, &before, c.before, kBatchesAfter);
    const auto from_files = train_from(c, original, nullptr, c.before, kBatchesAfter, folder.path());
    for (std::size_t rank = 0; rank < whole.size(); ++rank) {
      EXPECT_EQ(changed_paths(whole[rank], resumed[rank]), std::set<std::string>{}) << "on rank " << rank;
      EXPECT_EQ(changed_paths(whole[rank], from_files[rank]), std::set<std::string>{})
          << "from files, on rank " << rank;
    }
  }
}

TEST(State, NamesWhatAStepChanges) {
  torch::manual_seed(22);
  const StatefulNet original;
  for (const StateCase& c : state_cases()) {
    SCOPED_TRACE(c.name);
    const auto before = train_from(c, original, nullptr, 0, c.before);
    const auto after = train_from(c, original, nullptr, 0, c.before + c.options.aggregation_frequency);
    for (std::size_t rank = 0; rank < after.size(); ++rank) {
      const auto paths = changed_paths(before[rank], after[rank]);
      for (const std::string& expected : c.changing) {
        const auto found = paths.lower_bound(expected);
        EXPECT_TRUE(found != paths.end() && found->starts_with(expected)) << expected << " on rank " << rank;
      }
    }
  }
}

// Ranks that update parts of the parameters hold the moments of those parts alone. What they list is whole, so that a
// run with another strategy can go on from it.
TEST(State, IsWholeWhereTheRanksDivideIt) {
  torch::manual_seed(23);
  const StatefulNet original;
  const StateCase parts{
      "parts", options_with([](auto& o) { o.strategy.sharded = config::ShardedOptimizer::kOn; }), {}, 3, false};
  const StateCase replicated{"replicated", options_with([](auto&) {}), {}, 3};
  const auto divided = train_from(parts, original, nullptr, 0, kBatchesBefore);
  const auto whole = train_from(replicated, original, nullptr, 0, kBatchesBefore);
  const auto resumed = train_from(replicated, original, &divided, kBatchesBefore, kBatchesAfter);
  const auto expected = train_from(replicated, original, nullptr, 0, kBatchesBefore + kBatchesAfter);
  for (std::size_t rank = 0; rank < whole.size(); ++rank) {
    EXPECT_EQ(changed_paths(whole[rank], divided[rank]), std::set<std::string>{}) << "on rank " << rank;
    EXPECT_EQ(changed_paths(expected[rank], resumed[rank]), std::set<std::string>{}) << "on rank " << rank;
  }
}

// A loss that is no number is announced with the next batch, so the batch before a visit is not counted yet.
TEST(State, KeepsWhatIsNotAnnouncedYet) {
  run_small(1, [](SmallRun& run) {
    NonFinite seen(run.services, false), restored(run.services, false);
    seen.see_loss(HUGE_VAL, 3);
    Collector collector;
    seen.visit(collector);
    Restorer restorer(collector.state);
    restored.visit(restorer);
    restored.add_round(restored.take_words(3), 3);
    EXPECT_EQ(restored.batches(), 1);
    restored.write();
    EXPECT_EQ(run.plan["non_finite"]["text"], "the loss is inf in batch 3 on rank 0");
  });
}

TEST(AutomaticCheckpoints, CostNoMoreThanAHalfPercent) {
  const auto seconds = [](double cost_s) { return CheckpointSchedule::automatic_period(cost_s).count(); };
  EXPECT_EQ(seconds(0), 60);
  EXPECT_EQ(seconds(0.3), 60);
  EXPECT_NEAR(seconds(1.5), 300, 1e-9);
  EXPECT_EQ(seconds(100), 600);
}

// Entries of each kind, also with tensors that are empty or not contiguous.
struct OneOfEach {
  void visit(StateVisitor& visitor) {
    visitor.number("number", number);
    std::optional<double> value = real;
    visitor.real("real", value);
    visitor.reals("reals", reals);
    visitor.text("text", text);
    visitor.tensor("scalar", torch::tensor(7.5, torch::kDouble));
    visitor.tensor("empty", torch::empty({3, 0}));
    visitor.tensor("transposed", torch::arange(6, torch::kInt64).view({2, 3}).t());
    visitor.tensor("flags", torch::tensor({true, false, true}));
  }
  std::int64_t number = -3;
  double real = 0.1;
  std::vector<float> reals{1, 2, 3};
  std::string text = "a text of an odd length";
};

TEST(OwnState, ARecordHasEachEntryAsItWas) {
  std::vector<std::max_align_t> memory(256);
  const auto bytes = std::as_writable_bytes(std::span(memory));
  OneOfEach state;
  OwnStateWriter writer(bytes);
  writer.part("own", state);
  ASSERT_TRUE(writer.fits());
  Collector expected, found;
  expected.part("own", state);
  visit_own_state(bytes.first(writer.bytes()), found);
  EXPECT_EQ(found.state.texts, expected.state.texts);
  ASSERT_EQ(found.state.tensors.size(), expected.state.tensors.size());
  for (const auto& [path, value] : expected.state.tensors) {
    ASSERT_TRUE(found.state.tensors.contains(path)) << path;
    EXPECT_EQ(found.state.tensors[path].dtype(), value.dtype()) << path;
    EXPECT_TRUE(found.state.tensors[path].equal(value)) << path;
  }
  OwnStateWriter small(bytes.first(writer.bytes() - 1));
  small.part("own", state);
  EXPECT_FALSE(small.fits());
  EXPECT_EQ(small.bytes(), writer.bytes());
}

}  // namespace
}  // namespace dtrain::train
