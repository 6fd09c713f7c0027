// The kernels of the norm of gradients against a loop in float64.
#include "device/kernels/squares.h"

#include <cmath>
#include <limits>
#include <memory>

#include "guarded.h"

namespace dtrain::test {
namespace {

using train::cuda::AddArguments;
using train::cuda::SquaresArguments;
using train::cuda::ThreadSums;

double sum_of_squares(const std::vector<std::vector<float>>& stretches, int offset, int blocks, ThreadOrder order) {
  SquaresArguments squares{.stretches = static_cast<int>(stretches.size())};
  std::vector<std::unique_ptr<Guarded<float>>> data;
  for (std::size_t s = 0; s < stretches.size(); ++s) {
    data.push_back(std::make_unique<Guarded<float>>(stretches[s], offset));
    squares.data[s] = data.back()->data();
    squares.counts[s] = static_cast<std::int64_t>(stretches[s].size());
  }
  Guarded<double> sums(std::vector<double>(static_cast<std::size_t>(blocks), std::nan("")), 0), result(1, 0);
  squares.sums = sums.data();
  run_on_host<ThreadSums>([](auto& block, const auto& a) { train::cuda::sum_squares(block, a); }, squares, blocks,
                          order);
  const AddArguments add{.sums = sums.data(), .count = blocks, .result = result.data()};
  run_on_host<ThreadSums>([](auto& block, const auto& a) { train::cuda::add_sums(block, a); }, add, 1, order);
  sums.expect_guards();
  result.expect_guards();
  return result.data()[0];
}

void check(const std::vector<std::vector<float>>& stretches, int offset, int blocks) {
  double expected = 0;
  for (const auto& stretch : stretches) {
    for (const float x : stretch) expected += static_cast<double>(x) * x;
  }
  const double sum = sum_of_squares(stretches, offset, blocks, ThreadOrder::kForward);
  EXPECT_NEAR(sum, expected, 4e-7 * expected);
  for (const ThreadOrder order : kOrders) EXPECT_EQ(sum_of_squares(stretches, offset, blocks, order), sum) << "a race";
}

TEST(SquaresKernel, SizesAlignmentsAndBlocks) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025, 9001}) {
    for (const int offset : {0, 1, 2}) {
      for (const int blocks : {1, 2, 5}) {
        SCOPED_TRACE(testing::Message() << count << " elements at offset " << offset << ", " << blocks << " blocks");
        check({random_floats(count, 7)}, offset, blocks);
      }
    }
  }
}

TEST(SquaresKernel, SeveralStretches) {
  check({random_floats(100, 1), random_floats(1, 2), random_floats(3000, 3)}, 0, 2);
  std::vector<std::vector<float>> most;
  for (int s = 0; s < SquaresArguments::kMost; ++s) most.push_back(random_floats(s + 1, static_cast<unsigned>(s)));
  check(most, 1, 3);
}

TEST(SquaresKernel, MoreBlocksThanThreads) {
  check({random_floats(5000, 5)}, 0, train::cuda::kThreads + 9);
}

TEST(SquaresKernel, SmallAndLargeNumbersTogether) {
  std::vector<float> values(1000, 1e-3f);
  values[500] = 1e6f;
  check({values}, 0, 2);
}

TEST(SquaresKernel, WhatIsNotFiniteIsSeen) {
  for (const std::size_t place : {0, 4, 998, 1002}) {
    std::vector<float> values = random_floats(1003, 9);
    values[place] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(sum_of_squares({values}, 0, 2, ThreadOrder::kForward), std::numeric_limits<double>::infinity());
    values[place] = std::nanf("");
    EXPECT_TRUE(std::isnan(sum_of_squares({values}, 0, 2, ThreadOrder::kForward))) << place;
  }
}

TEST(SquaresKernel, BlocksDependOnTheSizeAlone) {
  EXPECT_EQ(train::cuda::blocks_of_squares(0), 1);
  EXPECT_EQ(train::cuda::blocks_of_squares(1), 1);
  EXPECT_EQ(train::cuda::blocks_of_squares(4096), 1);
  EXPECT_EQ(train::cuda::blocks_of_squares(4097), 2);
  EXPECT_EQ(train::cuda::blocks_of_squares(std::int64_t{1} << 40), 1024);
}

}  // namespace
}  // namespace dtrain::test
