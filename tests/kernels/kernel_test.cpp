// The ground under the kernels: conversions of numbers, and that the host's blocks find a race and a wrong index.
#include "device/kernels/kernel.h"

#include <cmath>
#include <limits>

#include "guarded.h"

namespace dtrain::test {
namespace {

using train::cuda::kThreads;

double value_of_float16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
  const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

TEST(KernelConversions, EveryFloat16AndWhatLiesBetweenTwo) {
  for (int bits = 0; bits < 0x7C00; ++bits) {
    for (const int sign : {0, 0x8000}) {
      const auto low = static_cast<std::uint16_t>(bits | sign), high = static_cast<std::uint16_t>(low + 1);
      const double from = value_of_float16(low);
      const double to = bits == 0x7BFF ? std::copysign(65536.0, from) : value_of_float16(high);
      const auto middle = static_cast<float>((from + to) / 2);
      ASSERT_EQ(train::cuda::to_float16(static_cast<float>(from)), low);
      ASSERT_EQ(train::cuda::to_float16(middle), bits % 2 == 0 ? low : high) << middle;
      ASSERT_EQ(train::cuda::to_float16(std::nextafterf(middle, static_cast<float>(from))), low) << middle;
      ASSERT_EQ(train::cuda::to_float16(std::nextafterf(middle, static_cast<float>(2 * to))), high) << middle;
    }
  }
}

TEST(KernelConversions, Float16OfWhatItCannotHave) {
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(train::cuda::to_float16(65520), 0x7C00);
  EXPECT_EQ(train::cuda::to_float16(-1e30f), 0xFC00);
  EXPECT_EQ(train::cuda::to_float16(Limits::infinity()), 0x7C00);
  EXPECT_EQ(train::cuda::to_float16(Limits::quiet_NaN()) & 0x7FFF, 0x7E00);
  EXPECT_EQ(train::cuda::to_float16(Limits::denorm_min()), 0);
}

TEST(KernelConversions, Bfloat16) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const float value = train::cuda::from_bfloat16(narrow);
    if (std::isnan(value)) {
      ASSERT_EQ(train::cuda::to_bfloat16(value), 0x7FC0);
      continue;
    }
    ASSERT_EQ(train::cuda::to_bfloat16(value), narrow);
    if (std::isinf(value)) continue;
    const auto up = static_cast<std::uint16_t>(narrow + 1);
    const auto between = [&](std::uint32_t low) { return train::cuda::same_bits<float>(bits << 16 | low); };
    ASSERT_EQ(train::cuda::to_bfloat16(between(0x7FFF)), narrow);
    ASSERT_EQ(train::cuda::to_bfloat16(between(0x8000)), narrow % 2 == 0 ? narrow : up);
    ASSERT_EQ(train::cuda::to_bfloat16(between(0x8001)), up);
  }
}

struct OneEach {
  float of[kThreads];
};

// Each thread takes what its neighbour writes in the same phase.
TEST(HostBlocks, ARaceGivesOtherBitsInAnotherOrder) {
  const auto kernel = [](auto& block, float* results) {
    auto& shared = block.shared();
    block.each([&](int thread) {
      shared.of[thread] = static_cast<float>(thread);
      block.array(results, kThreads).template put<1>(thread, {shared.of[(thread + 1) % kThreads]});
    });
  };
  std::vector<std::vector<float>> results;
  for (const ThreadOrder order : kOrders) {
    results.emplace_back(kThreads);
    run_on_host<OneEach>(kernel, results.back().data(), 1, order);
  }
  EXPECT_FALSE(same_bits(results[0], results[1]));
  EXPECT_FALSE(same_bits(results[0], results[2]));
  EXPECT_TRUE(std::isnan(results[0][0])) << "shared memory that nobody has written";
}

TEST(HostBlocks, AnIndexThatIsWrongIsAnError) {
  Guarded<float> memory(8, 0);
  const HostArray<float> array(memory.data(), 8);
  EXPECT_NO_THROW(array.get<4>(4));
  EXPECT_NO_THROW(array.get<1>(7));
  EXPECT_THROW(array.get<1>(8), std::out_of_range);
  EXPECT_THROW(array.get<1>(-1), std::out_of_range);
  EXPECT_THROW(array.put<4>(5, {}), std::out_of_range);
  EXPECT_THROW(array.get<4>(2), std::out_of_range) << "not aligned";
}

}  // namespace
}  // namespace dtrain::test
