#include "dtrain/base/error.h"

#include <cerrno>

#include <gtest/gtest.h>

#include "dtrain/base/clock.h"

namespace dtrain {
namespace {

TEST(Error, DescribesTheWholeChainOfCauses) {
  try {
    try {
      try {
        throw SystemError("cannot read a.idx", ENOENT);
      } catch (...) {
        std::throw_with_nested(DataError("the training set is incomplete"));
      }
    } catch (...) {
      std::throw_with_nested(Error("rank 1 cannot start"));
    }
  } catch (const std::exception& error) {
    EXPECT_EQ(describe(error),
              "rank 1 cannot start: the training set is incomplete: cannot read a.idx: No such file or directory");
  }
}

TEST(Error, DescribesACauseOfAnyType) {
  try {
    try {
      throw 5;
    } catch (...) {
      std::throw_with_nested(CommError("lost"));
    }
  } catch (const std::exception& error) {
    EXPECT_EQ(describe(error), "lost: an exception of an unknown type");
  }
}

TEST(Error, KeepsCodeAndRemedy) {
  const SystemError error("cannot write x", ENOSPC, "free space");
  EXPECT_EQ(error.code(), ENOSPC);
  EXPECT_EQ(error.remedy(), "free space");
  EXPECT_STREQ(error.what(), "cannot write x: No space left on device");
  EXPECT_EQ(ConfigError("bad").remedy(), "");
}

TEST(Clock, FormatsUtcToTheMicrosecond) {
  EXPECT_EQ(format_utc(Nanoseconds(0)), "1970-01-01T00:00:00.000000Z");
  EXPECT_EQ(format_utc(std::chrono::seconds(1772368496) + std::chrono::nanoseconds(789012999)),
            "2026-03-01T12:34:56.789012Z");
  EXPECT_EQ(format_utc(Nanoseconds(-1)), "1969-12-31T23:59:59.999999Z");
}

TEST(Clock, MonotonicNeverGoesBack) {
  const SystemClock clock;
  Nanoseconds last = clock.monotonic();
  for (int i = 0; i < 1000; ++i) {
    const Nanoseconds now = clock.monotonic();
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_GT(clock.wall(), std::chrono::seconds(1'600'000'000));
}

}  // namespace
}  // namespace dtrain
