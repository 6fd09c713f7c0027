// Counts the assertions that a test program executes. Part of the tests' precompiled headers, and so of programs
// without GoogleTest, too: assertion_count.cpp prints the number.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

namespace dtrain::test {

inline std::atomic<std::int64_t> assertions_executed = 0;

}  // namespace dtrain::test

// Each of GoogleTest's assertions begins with this macro.
#undef GTEST_AMBIGUOUS_ELSE_BLOCKER_
#define GTEST_AMBIGUOUS_ELSE_BLOCKER_             \
  switch (++dtrain::test::assertions_executed, 0) \
  case 0:                                         \
  default:  // NOLINT
