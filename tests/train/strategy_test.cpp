// The strategies divide the same work differently: what they make of a model must not differ in a single bit.
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "exchange/autotune.h"
#include "exchange/gradient_exchange.h"
#include "exchange/replicated.h"
#include "exchange/sharded.h"
#include "exchange/strategy_picker.h"
#include "harness/run_ranks.h"
#include "model/flat_optimizer.h"
#include "no_common_memory.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

enum class Kind { kReplicated, kOneCopy, kParts };

struct Case {
  Optimizer optimizer;
  int ranks = 2;
  int batches = 1;  // of a window
  double max_norm = 0;
};

using NamedWeights = std::map<std::string, at::Tensor>;

std::unique_ptr<GradientStrategy> make(Kind kind, FlatParameters& flat, FlatOptimizer& optimizer,
                                       comm::Communicator& communicator, profile::Recorder& recorder,
                                       const WindowScale& scale) {
  if (kind == Kind::kReplicated) {
    return std::make_unique<Replicated>(flat, optimizer, communicator, recorder, scale);
  }
  auto sharded = std::make_unique<Sharded>(flat, optimizer, communicator, recorder, scale);
  EXPECT_EQ(sharded->layout().one_copy, kind == Kind::kOneCopy);
  return sharded;
}

// Seven windows of `kinds` in turn; `second` is used by rank 1 alone, and by nobody in some windows (the first one
// too); the last window is one batch short. Every rank's weights.
std::vector<NamedWeights> train(const Case& c, const Model& original, const std::vector<Kind>& kinds,
                                const std::vector<std::int64_t>& thresholds, const std::string& backend = "thread") {
  std::vector<NamedWeights> results(static_cast<std::size_t>(c.ranks));
  test::run_communicator_ranks(test::TestWorld(c.ranks), backend, [&](comm::Communicator& plain) {
    NoCommonMemory without(plain);
    const bool parts = std::find(kinds.begin(), kinds.end(), Kind::kParts) != kinds.end();
    comm::Communicator& communicator = parts ? static_cast<comm::Communicator&>(without) : plain;
    const int rank = communicator.rank();
    Model model = copy_of(original);
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(c.optimizer, nullptr, flat);
    std::vector<comm::FusionPlan> plans;
    for (const std::int64_t threshold : thresholds) plans.push_back(comm::plan_fusion(items_of(flat), threshold));
    const SystemClock clock;
    profile::Recorder recorder({}, clock, clock.monotonic());
    GradientExchange exchange(flat, communicator, communicator, recorder);
    const GradientHooks hooks(flat, exchange);
    const FixedScale scale(1.0 / (c.batches * c.ranks));
    std::unique_ptr<GradientStrategy> strategy;
    for (std::size_t window = 0; window < 7; ++window) {
      if (window == 0 || (kinds.size() > 1 && window < kinds.size())) {
        if (strategy) strategy->complete_state();
        strategy.reset();
        strategy = make(kinds[window], flat, optimizer, communicator, recorder, scale);
      }
      const auto& plan = plans[window % plans.size()];
      strategy->set_plan(plan);
      exchange.use(*strategy, plan);
      const int batches = window == 6 && c.batches > 1 ? c.batches - 1 : c.batches;
      for (int batch = 0; batch < batches; ++batch) {
        exchange.begin_batch(batch == batches - 1);
        exchange.backward(model->loss(0.1 * static_cast<double>(1 + rank + window) + batch,
                                      rank == 1 && batch == 0 && window % 3 != 0));
      }
      const auto used = exchange.finish();
      strategy->update({used, static_cast<double>(c.batches) / batches, c.max_norm});
      exchange.end_window();
      optimizer.advance_schedule();
    }
    strategy.reset();  // parameters are the model's own again
    for (const auto& item : model->named_parameters()) {
      results[static_cast<std::size_t>(rank)][item.key()] = item.value().detach().clone();
    }
  });
  return results;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  const std::vector<Optimizer> optimizers{Sgd{.lr = 0.01}, Sgd{.lr = 0.01, .momentum = 0.9, .nesterov = true},
                                          Adam{.lr = 0.01, .weight_decay = 0.1}, AdamW{.lr = 0.01}, Lamb{.lr = 0.01}};
  for (const auto& optimizer : optimizers) {
    for (const int ranks : {2, 3}) {
      for (const int batches : {1, 4}) result.push_back({optimizer, ranks, batches, 0});
      result.push_back({optimizer, ranks, 1, 0.5});
    }
  }
  return result;
}

void expect_same(const std::vector<NamedWeights>& got, const std::vector<NamedWeights>& expected,
                 const Model& original) {
  for (std::size_t rank = 0; rank < got.size(); ++rank) {
    for (const auto& [name, value] : got[rank]) {
      EXPECT_TRUE(torch::equal(value, expected[0].at(name))) << name << " on rank " << rank;
    }
  }
  EXPECT_FALSE(torch::equal(expected[0].at("first"), original->first));
  EXPECT_FALSE(torch::equal(expected[0].at("second"), original->second));
}

TEST(Strategies, GiveTheSameBits) {
  torch::manual_seed(11);
  const Model original;
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << "optimizer " << c.optimizer.index() << ", " << c.ranks << " ranks, " << c.batches
                                    << " batches, clipped to " << c.max_norm);
    const auto replicated = train(c, original, {Kind::kReplicated}, {100});
    expect_same(replicated, replicated, original);
    for (const std::int64_t threshold : {0, 100, 1 << 20}) {
      expect_same(train(c, original, {Kind::kOneCopy}, {threshold}), replicated, original);
      expect_same(train(c, original, {Kind::kParts}, {threshold}), replicated, original);
    }
  }
}

TEST(Strategies, GiveTheSameBitsOverSharedMemory) {
  torch::manual_seed(12);
  const Model original;
  const Case c{AdamW{.lr = 0.01}, 3, 2, 0.5};
  const auto replicated = train(c, original, {Kind::kReplicated}, {100}, "shm");
  expect_same(train(c, original, {Kind::kOneCopy}, {100}, "shm"), replicated, original);
  expect_same(train(c, original, {Kind::kParts}, {100}, "shm"), replicated, original);
}

TEST(Strategies, MayChangeAndSoMayThePlan) {
  torch::manual_seed(13);
  const Model original;
  for (const Case& c : {Case{Adam{.lr = 0.01}, 3, 1, 0.5}, Case{Sgd{.lr = 0.01, .momentum = 0.9}, 2, 2, 0},
                        Case{Lamb{.lr = 0.01}, 3, 1, 0.5}}) {
    const auto expected = train(c, original, {Kind::kReplicated}, {100});
    const std::vector<std::int64_t> plans{1 << 20, 0, 100};
    expect_same(train(c, original, {Kind::kReplicated}, plans), expected, original);
    for (const Kind other : {Kind::kOneCopy, Kind::kParts}) {
      expect_same(train(c, original, {other}, plans), expected, original);
      expect_same(train(c, original, {Kind::kReplicated, Kind::kReplicated, other, other, Kind::kReplicated}, plans),
                  expected, original);
    }
  }
}

// As clip_grad_norm_ does it: gradients that are finite become 0, and those that are infinite NaN. LAMB, whose steps
// depend on the norm of a parameter, loses that parameter alone.
TEST(Strategies, ClipAnInfiniteNormToZero) {
  for (const Kind kind : {Kind::kReplicated, Kind::kOneCopy, Kind::kParts}) {
    for (const Optimizer& how : {Optimizer(Sgd{.lr = 0.1}), Optimizer(Lamb{.lr = 0.1, .weight_decay = 0})}) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", optimizer " << how.index());
      test::run_communicator_ranks(test::TestWorld(2), "thread", [&](comm::Communicator& plain) {
        NoCommonMemory without(plain);
        comm::Communicator& communicator = kind == Kind::kParts ? static_cast<comm::Communicator&>(without) : plain;
        torch::nn::Linear model(16, 16);
        torch::nn::init::constant_(model->weight, 2);
        torch::nn::init::constant_(model->bias, 3);
        FlatParameters flat(*model, communicator);
        FlatOptimizer optimizer(how, nullptr, flat);
        const SystemClock clock;
        profile::Recorder recorder({}, clock, clock.monotonic());
        GradientExchange exchange(flat, communicator, communicator, recorder);
        const GradientHooks hooks(flat, exchange);
        const FixedScale scale(0.5);
        auto strategy = make(kind, flat, optimizer, communicator, recorder, scale);
        const auto plan = comm::plan_fusion(items_of(flat), 100);
        strategy->set_plan(plan);
        exchange.use(*strategy, plan);
        exchange.begin_batch(true);
        at::Tensor slopes = torch::ones({16, 16});
        if (communicator.rank() == 1) slopes[3][4] = std::numeric_limits<float>::infinity();
        exchange.backward((model->weight * slopes).sum() + model->bias.sum());
        const auto norm = strategy->update({exchange.finish(), 1, 0.5});
        ASSERT_TRUE(norm.has_value());
        EXPECT_TRUE(std::isinf(norm->item<double>()));
        const at::Tensor weight = model->weight.detach(), bias = model->bias.detach();
        const bool of_norms = std::holds_alternative<Lamb>(how);
        EXPECT_TRUE(std::isnan(weight[3][4].item<double>()));
        EXPECT_EQ(weight.isnan().sum().item<std::int64_t>(), of_norms ? 256 : 1);
        EXPECT_EQ(weight.eq(2).sum().item<std::int64_t>(), of_norms ? 0 : 255);
        EXPECT_TRUE(bias.eq(3).all().item<bool>());
        exchange.end_window();
        communicator.barrier().wait();
      });
    }
  }
}

// Passes its input on; in backward, which comes to it when every parameter's gradient is long ready, it calls back.
struct LateReader : torch::autograd::Function<LateReader> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    if (read) read();
    return gradients;
  }
  static thread_local std::function<void()> read;
};
thread_local std::function<void()> LateReader::read;

// With one copy of the parameters, a rank that is through with its buckets must not update while another, whose buckets
// are complete just as well, still runs backward; and nobody goes on before all have updated.
TEST(Sharded, NobodySeesParametersChangeDuringAStep) {
  test::run_communicator_ranks(test::TestWorld(2), "shm", [&](comm::Communicator& communicator) {
    torch::manual_seed(1);
    torch::nn::Linear model(32, 32);
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(Sgd{.lr = 0.1}, nullptr, flat);
    const SystemClock clock;
    profile::Recorder recorder({}, clock, clock.monotonic());
    const FixedScale scale(0.5);
    Sharded strategy(flat, optimizer, communicator, recorder, scale);
    ASSERT_TRUE(strategy.layout().one_copy);
    const auto plan = comm::plan_fusion(items_of(flat), 1 << 20);
    strategy.set_plan(plan);
    GradientExchange exchange(flat, communicator, communicator, recorder);
    exchange.use(strategy, plan);
    const GradientHooks hooks(flat, exchange);
    at::Tensor before = flat.groups()[0].values.clone();
    int late_reads = 0;
    LateReader::read = [&] {
      communicator.progress();  // the bucket is complete on both ranks, as far as this one is concerned
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(torch::equal(flat.groups()[0].values, before));
      ++late_reads;
    };
    for (int step = 0; step < 6; ++step) {
      exchange.begin_batch(true);
      at::Tensor x = torch::randn({4, 32}).requires_grad_();
      if (communicator.rank() == step % 2) x = LateReader::apply(x);
      exchange.backward(model->forward(x).pow(2).sum());
      strategy.update({exchange.finish(), 1, 0});
      exchange.end_window();
      const at::Tensor after = flat.groups()[0].values.clone();
      const std::int64_t half = after.numel() / 2;
      for (const std::int64_t begin : {std::int64_t{0}, half}) {
        EXPECT_FALSE(torch::equal(after.narrow(0, begin, half), before.narrow(0, begin, half)));
      }
      before = after;
    }
    EXPECT_EQ(late_reads, 3);
    LateReader::read = nullptr;
  });
}

// Of what a rank does not update it keeps no state: those pages do not even exist.
TEST(Sharded, KeepsTheStateOfItsOwnPartsAlone) {
  test::run_communicator_ranks(test::TestWorld(2), "thread", [&](comm::Communicator& plain) {
    NoCommonMemory communicator(plain);
    torch::manual_seed(1);
    torch::nn::Linear model(64, 64);
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(AdamW{}, nullptr, flat);
    const SystemClock clock;
    profile::Recorder recorder({}, clock, clock.monotonic());
    const FixedScale scale(0.5);
    Sharded strategy(flat, optimizer, communicator, recorder, scale);
    const auto plan = comm::plan_fusion(items_of(flat), 1 << 20);
    strategy.set_plan(plan);
    GradientExchange exchange(flat, communicator, communicator, recorder);
    exchange.use(strategy, plan);
    const GradientHooks hooks(flat, exchange);
    exchange.begin_batch(true);
    exchange.backward(model->forward(torch::randn({4, 64})).pow(2).sum());
    strategy.update({exchange.finish(), 1, 0});
    exchange.end_window();
    const std::int64_t half = flat.groups()[0].values.numel() / 2;
    const at::Tensor& state = optimizer.state(0)[1];
    EXPECT_EQ(state.narrow(0, communicator.rank() * half, half).count_nonzero().item<std::int64_t>(), half);
    EXPECT_EQ(state.narrow(0, (1 - communicator.rank()) * half, half).count_nonzero().item<std::int64_t>(), 0);
    for (const auto& p : flat.parameters()) EXPECT_FALSE(p.tensor.grad().defined()) << p.name;
  });
}

// Two ranks, of which rank 1 is the slower one on the second way and rank 0 the slower one on the first: what counts is
// the slowest. The first step of a turn is an outlier.
bool second_is_taken(double first_ms, double second_ms) {
  bool result = false;
  test::run_communicator_ranks(test::TestWorld(2), "thread", [&](comm::Communicator& communicator) {
    TurnComparison comparison(communicator, /*enough=*/1.01);
    std::vector<bool> used;
    while (!comparison.done()) {
      used.push_back(comparison.second());
      const bool first = used.size() > 1 && used.back() != used[used.size() - 2];
      const bool slowest = comparison.second() == (communicator.rank() == 1);
      const double time = (comparison.second() ? second_ms : first_ms) * (slowest ? 1 : 0.1);
      const bool changed = comparison.end_step(static_cast<std::int64_t>(used.size()), first ? 1e6 : time);
      EXPECT_EQ(changed, comparison.second() != used.back());
      ASSERT_LT(used.size(), 100u);
    }
    EXPECT_EQ(std::count(used.begin(), used.end(), true), 10);
    EXPECT_FALSE(used.front());
    EXPECT_EQ(comparison.first_ms(), first_ms);
    EXPECT_EQ(comparison.second_ms(), second_ms);
    ASSERT_EQ(comparison.turns().size(), 4u);
    for (const auto& turn : comparison.turns()) {
      EXPECT_EQ(turn.last_batch, turn.first_batch + 3);
      for (auto batch = static_cast<std::size_t>(turn.first_batch); batch <= static_cast<std::size_t>(turn.last_batch);
           ++batch) {
        EXPECT_EQ(used.at(batch - 1), turn.second) << batch;
      }
    }
    const bool second = comparison.second();
    EXPECT_FALSE(comparison.end_step(100, 1));  // over is over
    EXPECT_EQ(comparison.second(), second);
    if (communicator.rank() == 0) result = second;
  });
  return result;
}

TEST(TurnComparison, TakesTheFasterWayAndTheSecondWhereItIsFastEnough) {
  EXPECT_TRUE(second_is_taken(10, 5));
  EXPECT_FALSE(second_is_taken(5, 10));
  EXPECT_TRUE(second_is_taken(10, 10.05));
}

TEST(TurnComparison, GoesOnElsewhereInTheSameTurns) {
  test::run_communicator_ranks(test::TestWorld(1), "thread", [&](comm::Communicator& communicator) {
    for (int broken_after = 0; broken_after < 22; ++broken_after) {
      TurnComparison whole(communicator, 1), first(communicator, 1), rest(communicator, 1);
      for (int step = 0; step < broken_after; ++step) {
        whole.end_step(step + 1, 1);
        first.end_step(step + 1, 1);
      }
      rest.go_on_after(first.steps());
      for (int step = broken_after; step < 22; ++step) {
        EXPECT_EQ(rest.second(), whole.second()) << step << " of " << broken_after;
        EXPECT_FALSE(rest.done());
        whole.end_step(step + 1, 1);
        rest.end_step(step + 1, 1);
      }
      EXPECT_TRUE(whole.done());
      EXPECT_TRUE(rest.done());
    }
  });
}

// Odd sizes over several pages; `sometimes` is used by rank 1 alone, in every second window.
struct PagesImpl : torch::nn::Module {
  PagesImpl() {
    torch::manual_seed(5);
    first = register_parameter("first", torch::randn({301, 211}));
    sometimes = register_parameter("sometimes", torch::randn({20'017}));
    wide = register_parameter("wide", torch::randn({9'001}, torch::kFloat64));
    last = register_parameter("last", torch::randn({7, 4'003}));
  }
  torch::Tensor loss(double x, bool use_sometimes) {
    auto sum = (first.sin() * x).sum() + (wide * wide * x).sum().to(torch::kFloat) + (last * last * x).sum();
    return use_sometimes ? sum + (sometimes * sometimes * x).sum() : sum;
  }
  torch::Tensor first, sometimes, wide, last;
};
TORCH_MODULE(Pages);

std::int64_t resident_bytes(const at::Tensor& flat) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t bytes = (flat.nbytes() + page - 1) / page * page;
  std::vector<unsigned char> pages(bytes / page);
  EXPECT_EQ(::mincore(flat.data_ptr(), bytes, pages.data()), 0);
  const auto resident = std::count_if(pages.begin(), pages.end(), [](unsigned char one) { return (one & 1) != 0; });
  return static_cast<std::int64_t>(page) * resident;
}

// Six windows of two batches. Every rank's weights; `kept`: of rank 0, resident bytes of gradients after the last
// update.
std::vector<NamedWeights> train_pages(int ranks, Kind kind, bool free, const std::string& backend,
                                      std::int64_t threshold, std::int64_t* kept = nullptr,
                                      const Optimizer& kind_of_update = AdamW{.lr = 0.01}) {
  std::vector<NamedWeights> results(static_cast<std::size_t>(ranks));
  std::mutex seeding;
  test::run_communicator_ranks(test::TestWorld(ranks), backend, [&](comm::Communicator& plain) {
    NoCommonMemory without(plain);
    comm::Communicator& communicator = kind == Kind::kParts ? static_cast<comm::Communicator&>(without) : plain;
    const int rank = communicator.rank();
    Pages model = nullptr;
    {
      const std::scoped_lock lock(seeding);
      model = Pages();
    }
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(kind_of_update, nullptr, flat);
    const comm::FusionPlan plan = comm::plan_fusion(items_of(flat), threshold);
    const SystemClock clock;
    profile::Recorder recorder({}, clock, clock.monotonic());
    GradientExchange exchange(flat, communicator, communicator, recorder);
    const GradientHooks hooks(flat, exchange);
    const FixedScale scale(1.0 / (2 * ranks));
    auto strategy = make(kind, flat, optimizer, communicator, recorder, scale);
    strategy->set_plan(plan);
    exchange.use(*strategy, plan);
    for (int window = 0; window < 6; ++window) {
      if (window == 1) exchange.free_spare_gradients(free);
      for (int batch = 0; batch < 2; ++batch) {
        exchange.begin_batch(batch == 1);
        exchange.backward(model->loss(0.1 * (1 + rank + window) + batch, rank == 1 && window % 2 == 1));
      }
      const auto used = exchange.finish();
      strategy->update({used, 1, 0.5});
      exchange.end_window();
      optimizer.advance_schedule();
    }
    if (kept != nullptr && rank == 0) {
      *kept = 0;
      for (const auto& group : flat.groups()) *kept += resident_bytes(group.gradients);
    }
    strategy.reset();
    for (const auto& item : model->named_parameters()) {
      results[static_cast<std::size_t>(rank)][item.key()] = item.value().detach().clone();
    }
  });
  return results;
}

TEST(ShardedGradients, GiveTheSameBitsAndTakeAPartOfTheMemory) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto expected = train_pages(ranks, Kind::kReplicated, false, "thread", 1 << 20);
    for (const char* backend : {"thread", "shm"}) {
      for (const Kind kind : {Kind::kParts, Kind::kOneCopy}) {
        for (const std::int64_t threshold : {0, 200'000, 1 << 20}) {
          SCOPED_TRACE(testing::Message() << ranks << " ranks, " << backend << ", buckets of " << threshold);
          std::int64_t whole = 0, kept = 0;
          const auto plain = train_pages(ranks, kind, false, backend, threshold, &whole);
          const auto freed = train_pages(ranks, kind, true, backend, threshold, &kept);
          for (std::size_t rank = 0; rank < freed.size(); ++rank) {
            for (const auto& [name, value] : freed[rank]) {
              EXPECT_TRUE(torch::equal(value, expected[0].at(name))) << name << " on rank " << rank;
              EXPECT_TRUE(torch::equal(value, plain[rank].at(name))) << name << " on rank " << rank;
            }
          }
          // Of each bucket at most two stretches of two partial pages stay, here of four buckets.
          constexpr std::int64_t kRounding = 4 * 4 * 4096;
          EXPECT_GE(kept + 4 * 4096, whole / ranks);
          EXPECT_LE(kept, whole / ranks + kRounding);
        }
      }
    }
  }
}

// Large parameters whose norms ranks add up; one of them is not used in every window. Buckets of one parameter, or of
// several.
TEST(ShardedNorms, GiveTheSameBits) {
  for (const int ranks : {2, 3, 5}) {
    const auto expected = train_pages(ranks, Kind::kReplicated, false, "thread", 1 << 20, nullptr, Lamb{.lr = 0.01});
    for (const Kind kind : {Kind::kParts, Kind::kOneCopy}) {
      for (const std::int64_t threshold : {0, 1 << 20}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, buckets of " << threshold);
        const auto got = train_pages(ranks, kind, true, "thread", threshold, nullptr, Lamb{.lr = 0.01});
        for (std::size_t rank = 0; rank < got.size(); ++rank) {
          for (const auto& [name, value] : got[rank]) {
            EXPECT_TRUE(torch::equal(value, expected[0].at(name))) << name << " on rank " << rank;
          }
        }
      }
    }
  }
}

TEST(StrategyReport, SaysWhatGradientsTake) {
  StrategyFacts facts;
  facts.sharded = true;
  facts.world_size = 4;
  facts.ranks_of_host = 2;
  facts.parameter_bytes = facts.state_bytes = 64 << 20;
  facts.gradients = GradientFacts{.decided = true, .sharded = true, .bytes = 64 << 20, .kept_bytes = 16 << 20};
  const auto text = [&] { return describe_strategy(facts)["text"].get<std::string>(); };
  EXPECT_EQ(describe_strategy(facts)["gradients"],
            Json({{"sharded", true}, {"bytes", 64 << 20}, {"kept_bytes", 16 << 20}, {"short_of_memory", false}}));
  EXPECT_THAT(text(), testing::EndsWith("; between steps a rank keeps 16.0 MiB of its 64.0 MiB of gradients"));
  facts.gradients->short_of_memory = true;
  EXPECT_THAT(text(), testing::EndsWith("of gradients (the host is short of memory)"));
  facts.gradients->short_of_memory = false;
  facts.gradients->whole_ms = 100;
  facts.gradients->sharded_ms = 100.5;
  EXPECT_THAT(text(), testing::EndsWith("of gradients (a step takes 100.50 ms, with all of them 100.00 ms)"));
  facts.gradients->sharded = false;
  EXPECT_THAT(text(), testing::EndsWith("; between steps a rank keeps all of its 64.0 MiB of gradients (a step takes "
                                        "100.00 ms, without the others' 100.50 ms)"));
  facts.gradients->decided = false;
  EXPECT_THAT(text(), testing::Not(testing::HasSubstr("of gradients")));
}

TEST(StrategyReport, SaysWhatItCostsAndSaves) {
  StrategyFacts facts;
  facts.sharded = facts.one_copy = true;
  facts.world_size = facts.ranks_of_host = 4;
  facts.parameter_bytes = 100 << 20;
  facts.state_bytes = 200 << 20;
  facts.replicated_ms = 12;
  facts.sharded_ms = 8;
  facts.turns = {{false, 4, 7}, {true, 9, 12}};
  Json json = describe_strategy(facts);
  EXPECT_EQ(json["strategy"], "sharded");
  EXPECT_EQ(json["host_bytes"]["parameters"], 100 << 20);
  EXPECT_EQ(json["turns"][1], Json({{"strategy", "sharded"}, {"first_batch", 9}, {"last_batch", 12}}));
  EXPECT_EQ(json["replicated_host_bytes"]["optimizer_state"], 800 << 20);
  EXPECT_EQ(json["text"],
            "sharded updates: 300.0 MiB of parameters and optimizer state a host instead of 1.2 GiB (one copy for 4 "
            "ranks); a step takes 8.00 ms, replicated 12.00 ms");
  facts.one_copy = false;  // two hosts: each keeps its ranks' share of the state
  facts.world_size = 8;
  json = describe_strategy(facts);
  EXPECT_EQ(json["host_bytes"]["parameters"], 400 << 20);
  EXPECT_EQ(json["host_bytes"]["optimizer_state"], 100 << 20);
  facts.sharded = false;
  json = describe_strategy(facts);
  EXPECT_EQ(json["host_bytes"], json["replicated_host_bytes"]);
  EXPECT_EQ(json["strategy"], "replicated");
}

}  // namespace
}  // namespace dtrain::train
