// What run_tests.py runs: a program of which cases are skipped.
#include <gtest/gtest.h>

TEST(Skipping, ForOneReason) {
  GTEST_SKIP() << "no such thing here";
}
TEST(Skipping, ForTheSameReason) {
  GTEST_SKIP() << "no other thing here\nand no third";
}
TEST(Skipping, Not) {
  SUCCEED();
}
