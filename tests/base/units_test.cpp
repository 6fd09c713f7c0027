#include "dtrain/base/text.h"

#include <limits>

#include <gtest/gtest.h>

namespace dtrain {
namespace {

using namespace std::chrono_literals;

TEST(Units, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(25.0 * 1024 * 1024), "25.0 MiB");
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(1.5 * (1ull << 40)), "1.5 TiB");
}

TEST(Units, Durations) {
  EXPECT_EQ(format_duration(0ns), "0 s");
  EXPECT_EQ(format_duration(640ns), "640 ns");
  EXPECT_EQ(format_duration(812us), "812 us");
  EXPECT_EQ(format_duration(12345us), "12.3 ms");
  EXPECT_EQ(format_duration(4560ms), "4.56 s");
  EXPECT_EQ(format_duration(999999us), "1.00 s");
  EXPECT_EQ(format_duration(59999ms), "1 min 00 s");
  EXPECT_EQ(format_duration(125s), "2 min 05 s");
  EXPECT_EQ(format_duration(3h + 7min + 29s), "3 h 07 min");
  EXPECT_EQ(format_duration(-5ms), "-5.00 ms");
}

TEST(Units, Rates) {
  EXPECT_EQ(format_rate(12345.4), "12,345");
  EXPECT_EQ(format_rate(1234567), "1,234,567");
  EXPECT_EQ(format_rate(999), "999");
  EXPECT_EQ(format_rate(12.34), "12.3");
  EXPECT_EQ(format_rate(-1234), "-1,234");
  EXPECT_EQ(format_rate(std::numeric_limits<double>::infinity()), "-");
}

TEST(Units, Percent) {
  EXPECT_EQ(format_percent(0.1234), "12.3%");
}

}  // namespace
}  // namespace dtrain
