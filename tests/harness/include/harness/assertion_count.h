// Counts the assertions that a test program executes, and prints their number when it ends: scripts/test_results.py adds them up,
// so that a suite which became quicker by testing less is seen. Part of the tests' precompiled headers.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

namespace dtrain::test {

inline std::atomic<std::int64_t> assertions_executed = 0;

class AssertionCount : public testing::EmptyTestEventListener {
  void OnTestProgramEnd(const testing::UnitTest&) override {
    std::printf("assertions: %lld\n", static_cast<long long>(assertions_executed.load()));
  }
};

inline const bool kAssertionsAreCounted = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new AssertionCount);  // which owns it
  return true;
}();

}  // namespace dtrain::test

// Each of GoogleTest's assertions begins with this macro.
#undef GTEST_AMBIGUOUS_ELSE_BLOCKER_
#define GTEST_AMBIGUOUS_ELSE_BLOCKER_           \
  switch (++dtrain::test::assertions_executed, 0) \
  case 0:                                       \
  default:  // NOLINT
