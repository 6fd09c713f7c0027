// The arrays of an update of flat parameters, for tests of its kernels.
#pragma once

#include <optional>
#include <vector>

#include "device/kernels/update.h"
#include "guarded.h"

namespace dtrain::test {

enum class Copy { kNone, kBfloat16, kFloat16 };

struct FlatCase {
  int offset = 0;
  bool narrow_gradients = false;
  Copy copy = Copy::kNone;
  std::optional<float> number, rate, divisor, found_inf;  // on the device
};

// Returns random gradients, which are bfloat16 numbers if these are narrow.
inline std::vector<float> random_gradients(std::int64_t count, unsigned seed, bool narrow) {
  std::vector<float> gradients = random_floats(count, seed);
  if (narrow) {
    for (float& g : gradients) g = train::cuda::from_bfloat16(train::cuda::to_bfloat16(g));
  }
  return gradients;
}

class FlatArrays {
 public:
  FlatArrays(const FlatCase& c, const std::vector<float>& values, const std::vector<float>& gradients)
      : case_(c),
        given_(gradients),
        values_(values, c.offset),
        gradients_(gradients, c.offset),
        narrow_(static_cast<std::int64_t>(values.size()), c.offset),
        copy_(static_cast<std::int64_t>(values.size()), c.offset) {
    for (std::size_t i = 0; i < gradients.size(); ++i) narrow_.data()[i] = train::cuda::to_bfloat16(gradients[i]);
  }
  FlatArrays(const FlatArrays&) = delete;
  FlatArrays& operator=(const FlatArrays&) = delete;

  // The numbers of the host are `number` and `rate`.
  train::cuda::FlatArguments arguments(double number, double rate) {
    const auto pointer = [](const std::optional<float>& scalar) { return scalar ? &*scalar : nullptr; };
    return {.count = static_cast<std::int64_t>(given_.size()),
            .values = values_.data(),
            .gradients = case_.narrow_gradients ? nullptr : gradients_.data(),
            .narrow_gradients = case_.narrow_gradients ? narrow_.data() : nullptr,
            .shadow = case_.copy == Copy::kNone ? nullptr : copy_.data(),
            .shadow_is_float16 = case_.copy == Copy::kFloat16,
            .number_on_device = pointer(case_.number),
            .rate_on_device = pointer(case_.rate),
            .divisor = pointer(case_.divisor),
            .found_inf = pointer(case_.found_inf),
            .number = number,
            .rate = rate};
  }
  // Nothing was written that must not be, and the copy is that of the values, unless the update was stopped.
  void expect_guards() {
    values_.expect_guards();
    gradients_.expect_guards();
    copy_.expect_guards();
    EXPECT_TRUE(same_bits(gradients_.values(), given_)) << "gradients are only read";
    if (case_.copy == Copy::kNone) return;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const float value = values_.data()[i];
      const std::uint16_t copied =
          case_.copy == Copy::kFloat16 ? train::cuda::to_float16(value) : train::cuda::to_bfloat16(value);
      ASSERT_EQ(copy_.data()[i], case_.found_inf.value_or(0) != 0 ? 0xA5A5 : copied) << i;
    }
  }
  std::vector<float> values() { return values_.values(); }

 private:
  const FlatCase case_;
  const std::vector<float> given_;
  Guarded<float> values_, gradients_;
  Guarded<std::uint16_t> narrow_, copy_;
};

}  // namespace dtrain::test
