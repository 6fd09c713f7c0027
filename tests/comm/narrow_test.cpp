// float16 and bfloat16 against the plainest conversion, on every instruction set this CPU has: all values one way, all
// roundings that matter the other.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include <hwy/targets.h>

#include "collective/reduce.h"
#include "harness/elements.h"

namespace dtrain::comm {
namespace {

// Calls `check` once for each instruction set.
void on_every_target(const std::function<void()>& check) {
  const auto supported = hwy::SupportedTargets();
  for (auto left = supported; left != 0; left &= left - 1) {
    const auto target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class NarrowTypes : public testing::TestWithParam<DataType> {};

TEST_P(NarrowTypes, EveryValueWidens) {
  std::vector<std::uint16_t> bits(65'536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  on_every_target([&] {
    std::vector<float> values(bits.size());
    to_float32(GetParam(), bits.data(), values.data(), bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const double want = test::decode_narrow(GetParam(), bits[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(values[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(static_cast<float>(want))) << i;
      }
    }
  });
}

// Every narrow value, the midpoint to the next one, and the floats beside both; odd counts exercise the tails.
TEST_P(NarrowTypes, RoundsToNearestEven) {
  std::vector<float> values;
  for (std::uint32_t b = 0; b < 65'536; ++b) {
    const auto at = static_cast<float>(test::decode_narrow(GetParam(), static_cast<std::uint16_t>(b)));
    const auto next = static_cast<float>(test::decode_narrow(GetParam(), static_cast<std::uint16_t>(b + 1)));
    if (!std::isfinite(at)) {
      values.push_back(at);
      continue;
    }
    const float middle = std::isfinite(next) ? at + (next - at) / 2 : std::nextafter(at * 1.0004f, INFINITY);
    for (const float x : {at, middle}) {
      values.insert(values.end(), {std::nextafter(x, -INFINITY), x, std::nextafter(x, INFINITY)});
    }
  }
  values.push_back(1e30f);
  // Every kind of NaN, in whole vectors: rounded like a number, one with all digits set would become zero.
  for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fff8000u}) {
    values.insert(values.end(), 64, std::bit_cast<float>(nan));
  }
  on_every_target([&] {
    std::vector<std::uint16_t> bits(values.size());
    from_float32(GetParam(), values.data(), bits.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(test::decode_narrow(GetParam(), bits[i])));
      } else {
        ASSERT_EQ(bits[i], test::encode_narrow(GetParam(), values[i])) << values[i];
      }
    }
  });
}

TEST_P(NarrowTypes, ReductionsGiveTheSameBitsOnEveryTarget) {
  constexpr std::size_t kCount = 1003;
  std::vector<std::uint16_t> a(kCount), b(kCount);
  std::vector<std::vector<std::uint16_t>> results;
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = test::encode_narrow(GetParam(), std::sin(static_cast<double>(i)) * 100);
    b[i] = test::encode_narrow(GetParam(), std::cos(static_cast<double>(i)));
  }
  on_every_target([&] {
    std::vector<std::uint16_t> out(kCount);
    const std::byte* const in[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
    std::byte* const to[] = {reinterpret_cast<std::byte*>(out.data())};
    reduce_into({GetParam(), ReduceOp::kMean, 0.7, 1.3, 3}, in, to, kCount);
    results.push_back(out);
    ASSERT_EQ(results.back(), results.front());
  });
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowTypes, testing::Values(DataType::kFloat16, DataType::kBfloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(PartOf, CoversEverythingInLines) {
  for (const DataType type : test::kAllTypes) {
    for (const int ranks : {1, 2, 3, 7, 100}) {
      for (const std::size_t count : {0u, 1u, 63u, 64u, 65u, 1000u, 12'345u}) {
        std::size_t end = 0;
        std::size_t least = count, most = 0;
        for (int r = 0; r < ranks; ++r) {
          const Part part = part_of(count, type, r, ranks);
          ASSERT_EQ(part.begin, end);
          if (part.size()) {
            ASSERT_EQ(part.begin * size_of(type) % 64, 0u);
          }
          end = part.end;
          least = std::min(least, part.size());
          most = std::max(most, part.size());
        }
        ASSERT_EQ(end, count);
        ASSERT_LE((most - least) * size_of(type), 64u + 63u);
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::comm
