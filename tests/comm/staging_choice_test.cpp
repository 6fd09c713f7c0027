// All-reduces of registered memory directly or through the staging areas: which way is taken, and that the bits are the
// same whichever it is.
#include "shared_memory/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kBytes = 1 << 20;

// The choice after operations that take this long each way.
StagingChoice choose(std::int64_t direct_us, std::int64_t staged_us) {
  StagingChoice choice;
  for (int i = 0; i < 200 && !choice.decided(); ++i) {
    const bool staged = choice.next(kBytes);
    choice.took(kBytes, staged, std::chrono::microseconds(staged ? staged_us : direct_us));
  }
  EXPECT_TRUE(choice.decided());
  return choice;
}

TEST(StagingChoice, IsWhatTookLess) {
  StagingChoice staged = choose(78, 51);
  EXPECT_TRUE(staged.stages());
  EXPECT_TRUE(staged.next(kBytes));
  StagingChoice direct = choose(51, 78);
  EXPECT_FALSE(direct.stages());
  EXPECT_FALSE(direct.next(kBytes));
  EXPECT_FALSE(choose(51, 50).stages()) << "as fast: without copies";
}

TEST(StagingChoice, TriesBothWaysWithBucketsThatTakeTurns) {
  StagingChoice choice;
  std::map<std::pair<bool, bool>, int> seen;  // large bucket, staged
  for (int i = 0; i < 24; ++i) ++seen[{i % 2 == 0, choice.next(i % 2 == 0 ? 8 * kBytes : kBytes)}];
  EXPECT_EQ(seen.size(), 4u);
}

TEST(StagingChoice, SmallOperationsAreDirectAndDoNotCount) {
  StagingChoice choice;
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(choice.next(StagingChoice::kLeastBytes - 1));
    EXPECT_FALSE(choice.took(StagingChoice::kLeastBytes - 1, false, std::chrono::microseconds(1)));
  }
  EXPECT_FALSE(choice.decided());
}

class StagedOrDirect : public testing::TestWithParam<std::tuple<std::string, int>> {};

// The same sums again and again, in the trial and after it, in place and from one Buffer to another.
TEST_P(StagedOrDirect, HasTheSameBits) {
  const auto& [backend, ranks] = GetParam();
  test::run_communicator_ranks(test::TestWorld(ranks), backend, [](Communicator& comm) {
    constexpr std::size_t kCount = 50'021;  // odd parts
    const auto in = comm.allocate(kCount * sizeof(float)), out = comm.allocate(kCount * sizeof(float));
    auto* const from = reinterpret_cast<float*>(in->bytes().data());
    auto* const to = reinterpret_cast<float*>(out->bytes().data());
    std::vector<float> first;
    for (int turn = 0; turn < 40; ++turn) {
      for (std::size_t i = 0; i < kCount; ++i) {
        from[i] = 1.0F / static_cast<float>(1 + (i * 31 + static_cast<std::size_t>(comm.rank()) * 7) % 1013);
      }
      comm.barrier().wait();  // nobody writes what others still read
      float* const result = turn % 2 == 0 ? to : from;
      comm.all_reduce(from, result, kCount, DataType::kFloat32, {}).wait();
      if (first.empty()) first.assign(result, result + kCount);
      ASSERT_EQ(std::memcmp(first.data(), result, kCount * sizeof(float)), 0) << "turn " << turn;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, StagedOrDirect,
                         testing::Combine(testing::Values("thread", "shm"), testing::Values(2, 3, 5)));

}  // namespace
}  // namespace dtrain::comm
