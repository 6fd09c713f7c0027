#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compression/bucket_compressor.h"
#include "dtrain/comm/fusion_plan.h"
#include "exchange/gradient_tree.h"
#include "model/logical_buffers.h"
#include "small_run.h"
#include "step/logical_gradients.h"

namespace dtrain::train {
namespace {

using rank::Join;
using rank::LogicalRanks;
using rank::Subtree;

// Sums neighbours until one value is left; a value without a neighbour stays. Another description of the same tree.
template <typename T, typename Sum>
T sum_by_neighbours(std::vector<T> values, const Sum& sum) {
  while (values.size() > 1) {
    std::vector<T> next;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) next.push_back(sum(values[i], values[i + 1]));
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = std::move(next);
  }
  return values.front();
}

std::string sum_of_texts(const std::string& left, const std::string& right) {
  return "(" + left + "+" + right + ")";
}

// What ranks do with these leaves: sums inside each rank, then between the ranks.
std::string sum_over_ranks(const std::vector<std::string>& leaves, int ranks) {
  const int size = static_cast<int>(leaves.size());
  const rank::TreeExchange tree = rank::tree_exchange(size, ranks);
  std::vector<std::string> places(static_cast<std::size_t>(ranks) * tree.most);
  for (int r = 0; r < ranks; ++r) {
    const LogicalRanks own = rank::logical_ranks_of(r, ranks, size);
    std::vector<std::pair<Subtree, std::string>> waiting;
    for (int leaf = own.begin; leaf < own.end; ++leaf) {
      Subtree subtree{leaf, leaf + 1};
      std::string sum = leaves[static_cast<std::size_t>(leaf)];
      while (!waiting.empty() && rank::are_siblings(size, waiting.back().first, subtree)) {
        subtree.begin = waiting.back().first.begin;
        sum = sum_of_texts(waiting.back().second, sum);
        waiting.pop_back();
      }
      waiting.emplace_back(subtree, sum);
    }
    const std::vector<Subtree> largest = rank::largest_subtrees(size, own.begin, own.end);
    EXPECT_EQ(waiting.size(), largest.size());
    for (std::size_t i = 0; i < largest.size(); ++i) {
      EXPECT_EQ(waiting[i].first, largest[i]);
      places[static_cast<std::size_t>(r) * tree.most + i] = waiting[i].second;
    }
  }
  for (const Join& join : tree.joins) places[join.right] = sum_of_texts(places[join.left], places[join.right]);
  return places[tree.places.back()];
}

TEST(RankTree, SumsInOneOrderOnAnyNumberOfRanks) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int size = round < 20 ? round + 1 : static_cast<int>(random() % 60) + 1;
    const int ranks = static_cast<int>(random() % static_cast<unsigned>(size)) + 1;
    std::vector<std::string> leaves;
    for (int leaf = 0; leaf < size; ++leaf) leaves.push_back(std::to_string(leaf));
    const std::string expected = sum_by_neighbours(leaves, sum_of_texts);
    ASSERT_EQ(sum_over_ranks(leaves, ranks), expected) << size << " leaves on " << ranks << " ranks";
    const double levels = std::max(1.0, std::ceil(std::log2(size)));
    EXPECT_LE(static_cast<double>(rank::tree_exchange(size, ranks).most), 2 * levels);
    EXPECT_LE(rank::tree_cost(size, ranks).most_kept, 2 * levels);
  }
}

TEST(RankTree, DividesLogicalRanksInOrderAndEvenly) {
  for (int size = 1; size < 20; ++size) {
    for (int ranks = 1; ranks <= size; ++ranks) {
      int next = 0;
      for (int r = 0; r < ranks; ++r) {
        const LogicalRanks own = rank::logical_ranks_of(r, ranks, size);
        EXPECT_EQ(own.begin, next);
        EXPECT_GE(own.count(), size / ranks);
        EXPECT_LE(own.count(), (size + ranks - 1) / ranks);
        next = own.end;
      }
      EXPECT_EQ(next, size);
    }
  }
  const LogicalRanks real = rank::logical_ranks_of(2, 3, 0);
  EXPECT_EQ(real.size, 3);
  EXPECT_EQ(real.current, 2);
  EXPECT_FALSE(real.virtuals);
}

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_parameter("large", torch::zeros({5'001}));
    register_parameter("small", torch::zeros({3, 5}));
    register_parameter("wide", torch::zeros({77}, torch::kDouble));
    running = register_buffer("running", torch::zeros({4}));
    count = register_buffer("count", torch::zeros({}, torch::kLong));
  }
  at::Tensor running, count;
};

// Values of very different sizes, so that another order of sums gives other bits.
at::Tensor values_of(int leaf, const FlatParameters::Group& group, std::size_t index) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1000 * index + static_cast<std::size_t>(leaf));
  const at::Tensor values = at::randn({group.gradients.numel()}, random, at::kDouble);
  return (values * at::exp(8 * at::randn({group.gradients.numel()}, random, at::kDouble))).to(group.gradient_dtype);
}

std::vector<at::Tensor> expected_sums(const FlatParameters& parameters, std::vector<int> leaves) {
  std::vector<at::Tensor> sums;
  for (std::size_t g = 0; g < parameters.groups().size(); ++g) {
    std::vector<at::Tensor> values;
    for (const int leaf : leaves) values.push_back(values_of(leaf, parameters.groups()[g], g));
    sums.push_back(sum_by_neighbours(values, [](const at::Tensor& a, const at::Tensor& b) { return a + b; }));
  }
  return sums;
}

// Each group in two, of which the second one is larger.
std::vector<at::Tensor> buckets_of(const FlatParameters& parameters) {
  std::vector<at::Tensor> buckets;
  for (const auto& group : parameters.groups()) {
    const std::int64_t all = group.gradients.numel(), first = all / 3;
    buckets.push_back(group.gradients.narrow(0, 0, first));
    buckets.push_back(group.gradients.narrow(0, first, all - first));
  }
  return buckets;
}

TEST(GradientTree, GivesTheBitsOfTheTreeOnAnyNumberOfRanks) {
  for (const auto& [size, ranks] : {std::pair{1, 1}, {6, 1}, {6, 2}, {6, 3}, {6, 4}, {6, 6}, {8, 2}, {13, 4}}) {
    run_small(ranks, [&, size = size](SmallRun& run) {
      ModelImpl model;
      FlatParameters parameters(model, run.services.communicator);
      const LogicalRanks own = rank::logical_ranks_of(run.services.world.rank, run.services.world.size, size);
      TreeExchange exchange(run.services.communicator, run.services.recorder, own, /*at_once=*/8192);
      const std::vector<at::Tensor> buckets = buckets_of(parameters);
      GradientTree tree(exchange, buckets);
      std::vector<int> leaves(static_cast<std::size_t>(size));
      std::iota(leaves.begin(), leaves.end(), 0);
      const std::vector<at::Tensor> expected = expected_sums(parameters, leaves);
      for (int round = 0; round < 3; ++round) {  // later rounds have the memory of the first
        const bool in_backward = round == 2 && ranks > 1 && exchange.is_all_reduce();
        for (int leaf = own.begin; leaf < own.end; ++leaf) {
          for (std::size_t g = 0; g < parameters.groups().size(); ++g) {
            parameters.groups()[g].gradients.copy_(values_of(leaf, parameters.groups()[g], g));
          }
          if (!in_backward || leaf + 1 < own.end) tree.add(leaf);
        }
        std::vector<comm::Work> works;
        for (std::size_t b = 0; in_backward && b < buckets.size(); ++b) {
          works.push_back(tree.add_last(own.end - 1, b));
        }
        for (comm::Work& work : works) work.wait();
        if (!in_backward) tree.finish();
        for (std::size_t g = 0; g < expected.size(); ++g) {
          EXPECT_TRUE(at::equal(parameters.groups()[g].gradients, expected[g])) << size << " on rank " << own.begin;
        }
      }
      if (size < 3) return;
      std::swap(leaves[1], leaves[2]);
      EXPECT_FALSE(at::equal(parameters.groups()[0].gradients, expected_sums(parameters, leaves)[0]))
          << "the order of one leaf decides about bits";
    });
  }
}

struct MatricesImpl : torch::nn::Module {
  MatricesImpl() {
    register_parameter("matrix", torch::zeros({30, 24}));
    register_parameter("unused", torch::zeros({20, 22}));
    register_parameter("bias", torch::zeros({77}));
    register_parameter("wide", torch::zeros({9}, torch::kDouble));
  }
};

constexpr int kSteps = 13;  // some of them are exchanged uncompressed, for comparison
constexpr std::size_t kUnused = 1;

std::vector<comm::FusionItem> items_of(const FlatParameters& parameters) {
  std::vector<comm::FusionItem> items;
  for (const auto& p : parameters.parameters()) {
    items.push_back({p.group, p.offset, p.offset + p.padded, parameters.groups()[p.group].gradient_size, p.model});
  }
  return items;
}

// Fills the gradients of a logical rank, whose padding stays zero. Of odd steps one parameter is not used.
void fill_gradients(const FlatParameters& parameters, int step, int number) {
  for (std::size_t g = 0; g < parameters.groups().size(); ++g) {
    const at::Tensor values = values_of(1000 * step + number, parameters.groups()[g], g).mul_(1e-4);
    const at::Tensor& gradients = parameters.groups()[g].gradients;
    gradients.zero_();
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      const auto& parameter = parameters.parameters()[i];
      if (parameter.group != g || (i == kUnused && step % 2 == 1)) continue;
      const std::int64_t elements = parameter.gradient.numel();
      gradients.narrow(0, parameter.offset, elements).copy_(values.narrow(0, parameter.offset, elements));
    }
  }
}

// Keeps what a logical rank lists, and can put it back.
class Entries final : public StateVisitor {
 public:
  explicit Entries(std::map<std::string, at::Tensor>& kept, bool replaces) : kept_(kept), replaces_(replaces) {}
  bool replaces() const override { return replaces_; }

 private:
  void on_tensor(const std::string& path, at::Tensor value) override {
    replaces_ ? void(value.copy_(kept_.at(path))) : void(kept_[path] = value.clone());
  }
  void on_reals(const std::string& path, std::vector<float>& values) override {
    const auto size = static_cast<std::int64_t>(values.size());
    if (!replaces_) return void(kept_[path] = at::from_blob(values.data(), {size}).clone());
    values.assign(kept_.at(path).const_data_ptr<float>(),
                  kept_.at(path).const_data_ptr<float>() + kept_.at(path).numel());
  }
  void on_number(const std::string&, std::int64_t&) override {}
  void on_real(const std::string&, double&) override {}
  void on_text(const std::string&, std::string&) override {}

  std::map<std::string, at::Tensor>& kept_;
  const bool replaces_;
};

// The state of each logical rank, and the gradients of all steps.
struct Trained {
  std::map<int, std::map<std::string, at::Tensor>> states;
  std::vector<std::vector<at::Tensor>> steps;
};

// Trains the steps [first, end) of `size` logical ranks on `ranks` ranks, windows of `length` rounds, from the states.
void train_compressed(const comm::Compression& compression, int size, int ranks, int length, int first, int end,
                      Trained& trained) {
  std::mutex mutex;
  std::vector<Trained> of_ranks(static_cast<std::size_t>(ranks));
  run_small(ranks, [&](SmallRun& run) {
    const int me = run.services.world.rank;
    MatricesImpl model;
    FlatParameters parameters(model, run.services.communicator);
    const LogicalRanks own = rank::logical_ranks_of(me, ranks, size);
    AggregationWindow window(length, /*average=*/true);
    const comm::FusionPlan plan = comm::plan_fusion(items_of(parameters), 2'000);
    const auto gradients = make_logical_gradients({run.services, parameters, window, plan, own, /*settled_steps=*/4},
                                                  {.compression = compression, .seed = 3});
    for (int leaf = own.begin; leaf < own.end; ++leaf) {
      const auto state = trained.states.find(leaf);
      if (state == trained.states.end()) continue;
      Entries entries(state->second, /*replaces=*/true);
      gradients->visit_logical_rank(static_cast<std::size_t>(leaf - own.begin), entries);
    }
    for (int step = first; step < end; ++step) {
      for (int round = 0; round < length; ++round) {
        window.begin_round();
        for (int leaf = own.begin; leaf < own.end; ++leaf) {
          fill_gradients(parameters, step, 100 * round + leaf);
          gradients->add(leaf);
        }
        gradients->end_round();
      }
      std::vector<std::uint8_t> used(parameters.parameters().size(), 1);
      used[kUnused] = step % 2 == 0;
      const double factor = gradients->finish(used);
      window.close();
      auto& mine = of_ranks[static_cast<std::size_t>(me)];
      mine.steps.emplace_back();
      for (const auto& group : parameters.groups()) mine.steps.back().push_back(group.gradients.mul(factor));
    }
    gradients->report();
    const std::lock_guard lock(mutex);
    if (me == 0) trained.steps.insert(trained.steps.end(), of_ranks[0].steps.begin(), of_ranks[0].steps.end());
    for (int leaf = own.begin; leaf < own.end; ++leaf) {
      Entries entries(trained.states[leaf], /*replaces=*/false);
      gradients->visit_logical_rank(static_cast<std::size_t>(leaf - own.begin), entries);
    }
  });
  for (const Trained& other : of_ranks) {
    for (std::size_t step = 0; step < other.steps.size(); ++step) {
      for (std::size_t g = 0; g < other.steps[step].size(); ++g) {
        EXPECT_TRUE(at::equal(other.steps[step][g], of_ranks.front().steps[step][g]))
            << "ranks differ in step " << step;
      }
    }
  }
}

void expect_same(const Trained& one, const Trained& other, const std::string& what) {
  ASSERT_EQ(one.steps.size(), other.steps.size()) << what;
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    for (std::size_t g = 0; g < one.steps[step].size(); ++g) {
      ASSERT_TRUE(at::equal(one.steps[step][g], other.steps[step][g])) << what << ", step " << step << ", group " << g;
    }
  }
  ASSERT_EQ(one.states.size(), other.states.size()) << what;
  for (const auto& [leaf, entries] : one.states) {
    ASSERT_EQ(entries.size(), other.states.at(leaf).size()) << what;
    for (const auto& [path, value] : entries) {
      ASSERT_TRUE(at::equal(value, other.states.at(leaf).at(path))) << what << ", " << leaf << " " << path;
    }
  }
}

const std::map<std::string, comm::Compression> kCompressions{{"fp16", comm::Fp16()},
                                                             {"bf16", comm::Bf16()},
                                                             {"int8", comm::Int8()},
                                                             {"powersgd", comm::PowerSgd{.rank = 3, .warmup_steps = 1}},
                                                             {"topk", comm::TopK{.ratio = 0.05}}};

TEST(CompressedGradients, HaveTheSameBitsOnAnyNumberOfRanks) {
  for (const auto& [name, compression] : kCompressions) {
    Trained alone;
    train_compressed(compression, 6, 1, 1, 0, kSteps, alone);
    std::size_t entries = 0;
    for (const auto& [path, value] : alone.states.at(0)) entries += path.starts_with("compression/") ? 1 : 0;
    EXPECT_GE(entries, name == "bf16" ? 1U : 3U) << name;
    for (const int ranks : {3, 4, 6}) {
      Trained together;
      train_compressed(compression, 6, ranks, 1, 0, kSteps, together);
      expect_same(alone, together, name + " on " + std::to_string(ranks) + " ranks");
    }
    Trained moved;
    train_compressed(compression, 6, 4, 1, 0, 5, moved);
    train_compressed(compression, 6, 1, 1, 5, 9, moved);
    train_compressed(compression, 6, 2, 1, 9, kSteps, moved);
    expect_same(alone, moved, name + " from 4 ranks to 1 to 2");
  }
}

TEST(CompressedGradients, AddUpInWindowsOfSeveralRounds) {
  for (const char* const name : {"fp16", "powersgd"}) {
    Trained alone, together;
    train_compressed(kCompressions.at(name), 5, 1, 2, 0, kSteps, alone);
    train_compressed(kCompressions.at(name), 5, 3, 2, 0, kSteps, together);
    expect_same(alone, together, name);
  }
}

// The ranks of a run without virtual ranks gather and decode in the order of ranks, as logical ranks do.
TEST(CompressedGradients, AreThoseOfAsManyRanksWhereCodesAreGathered) {
  for (const char* const name : {"int8", "topk"}) {
    const comm::Compression& compression = kCompressions.at(name);
    Trained alone, real;
    train_compressed(compression, 3, 1, 1, 0, 5, alone);
    run_small(3, [&](SmallRun& run) {
      MatricesImpl model;
      FlatParameters parameters(model, run.services.communicator);
      const comm::FusionPlan plan = comm::plan_fusion(items_of(parameters), 64 << 20);
      std::vector<at::Tensor> flats;
      for (const auto& group : parameters.groups()) flats.push_back(group.gradients);
      const auto compressor = make_bucket_compressor(parameters, flats, run.services.communicator,
                                                     for_gradients(compression, 3, /*settled_steps=*/4));
      std::vector<std::vector<at::Tensor>> steps;
      for (int step = 0; step < 5; ++step) {
        fill_gradients(parameters, step, run.services.world.rank);
        for (std::size_t b = 0; b < plan.buckets.size(); ++b) compressor->exchange(plan, b, 1.0 / 3).wait();
        if (step % 2 == 1) compressor->not_applied(kUnused);
        compressor->end_step();
        steps.emplace_back();
        for (const at::Tensor& flat : flats) steps.back().push_back(flat.clone());
      }
      if (run.services.world.rank == 0) real.steps = std::move(steps);
    });
    for (std::size_t step = 0; step < 5; ++step) {
      for (std::size_t g = 0; g < alone.steps[step].size(); ++g) {
        if (alone.steps[step][g].scalar_type() != at::kFloat) continue;  // float64 is summed in another order
        EXPECT_TRUE(at::equal(alone.steps[step][g], real.steps[step][g])) << name << ", step " << step;
      }
    }
  }
}

TEST(SumInTree, GivesTheBitsOfTheTreeOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run_small(ranks, [&](SmallRun& run) {
      constexpr int kSize = 7;
      const auto value = [](int leaf, std::size_t column) {
        return std::exp(5.0 * std::sin(31.0 * leaf + 7.0 * static_cast<double>(column))) * (leaf % 2 ? -1 : 1);
      };
      const LogicalRanks own = rank::logical_ranks_of(run.services.world.rank, run.services.world.size, kSize);
      std::vector<double> rows;
      for (int leaf = own.begin; leaf < own.end; ++leaf) {
        for (std::size_t column = 0; column < 5; ++column) rows.push_back(value(leaf, column));
      }
      const std::vector<double> sums = sum_in_tree(run.services.communicator, own, rows, 5);
      ASSERT_EQ(sums.size(), 5U);
      for (std::size_t column = 0; column < 5; ++column) {
        std::vector<double> values;
        for (int leaf = 0; leaf < kSize; ++leaf) values.push_back(value(leaf, column));
        EXPECT_EQ(sums[column], sum_by_neighbours(values, std::plus<>())) << column;
      }
    });
  }
}

TEST(LogicalBuffers, BelongToOneLogicalRankEach) {
  ModelImpl model;
  LogicalBuffers buffers(model, rank::logical_ranks_of(1, 2, 6));
  for (std::size_t i = 0; i < 3; ++i) {
    buffers.load(i);
    model.running.add_(static_cast<double>(i + 1));
    model.count.add_(1);
    buffers.store(i);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    buffers.load(i);
    EXPECT_EQ(model.running[0].item<double>(), static_cast<double>(i + 1));
    EXPECT_EQ(model.count.item<std::int64_t>(), 1);
  }
  buffers.store_for_all();
  buffers.load(0);
  EXPECT_EQ(model.running[0].item<double>(), 3);
  model.running.resize_({5});
  EXPECT_THROW(buffers.store(0), Error);
}

}  // namespace
}  // namespace dtrain::train
