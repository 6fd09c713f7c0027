#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "exchange/gradient_tree.h"
#include "model/logical_buffers.h"
#include "small_run.h"

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

TEST(GradientTree, GivesTheBitsOfTheTreeOnAnyNumberOfRanks) {
  for (const auto& [size, ranks] : {std::pair{1, 1}, {6, 1}, {6, 2}, {6, 3}, {6, 4}, {6, 6}, {8, 2}, {13, 4}}) {
    run_small(ranks, [&, size = size](SmallRun& run) {
      ModelImpl model;
      FlatParameters parameters(model, run.services.communicator);
      const LogicalRanks own = rank::logical_ranks_of(run.services.world.rank, run.services.world.size, size);
      GradientTree tree(parameters, run.services.communicator, run.services.recorder, own, /*at_once=*/8192);
      std::vector<int> leaves(static_cast<std::size_t>(size));
      std::iota(leaves.begin(), leaves.end(), 0);
      const std::vector<at::Tensor> expected = expected_sums(parameters, leaves);
      for (int round = 0; round < 2; ++round) {  // the second round has the memory of the first
        for (int leaf = own.begin; leaf < own.end; ++leaf) {
          for (std::size_t g = 0; g < parameters.groups().size(); ++g) {
            parameters.groups()[g].gradients.copy_(values_of(leaf, parameters.groups()[g], g));
          }
          tree.add(leaf);
        }
        tree.finish();
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
