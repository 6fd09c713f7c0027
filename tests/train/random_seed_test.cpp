#include "loop/random_seed.h"

#include <cstdint>
#include <set>

#include <gtest/gtest.h>

namespace dtrain::train {
namespace {

// Runs of other versions of dtrain, and their checkpoints, have drawn with these.
TEST(RandomSeed, OfTrainingAndValidationStay) {
  EXPECT_EQ(random_seed(0, 0, 1, Draws::kTraining), 12935080325729570654u);
  EXPECT_EQ(random_seed(1234, 3, 500, Draws::kTraining), 13130569402806208700u);
  EXPECT_EQ(random_seed(1234, 3, 500, Draws::kValidation), 6825907542078797687u);
}

TEST(RandomSeed, DiffersByPurposeRankAndNumber) {
  std::set<std::uint64_t> seeds;
  for (const Draws draws : {Draws::kTraining, Draws::kEpoch, Draws::kData, Draws::kBeforeBatch, Draws::kValidation}) {
    for (int rank = 0; rank < 8; ++rank) {
      for (std::int64_t number = -1; number < 200; ++number) seeds.insert(random_seed(7, rank, number, draws));
    }
  }
  EXPECT_EQ(seeds.size(), 5u * 8 * 201);
}

}  // namespace
}  // namespace dtrain::train
