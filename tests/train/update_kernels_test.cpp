// The update kernels of every instruction set this CPU has, against the plainest arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numerics/kernels.h"
#include "update_targets.h"

namespace dtrain::train::kernels {
namespace {

// Element by element, as libtorch's compiler contracted it: `fma` where the CPU has such an instruction.
struct Reference {
  bool fma;

  float multiply_add(float a, float b, float c) const {
    if (fma) return std::fma(a, b, c);
    const float product = a * b;
    return product + c;
  }
  // `tail`: the element is one of the last that fill no vector of 8.
  float sgd(const SgdStep& s, bool tail, float value, float gradient, float& momentum) const {
    const auto factor = static_cast<float>(s.momentum), part = static_cast<float>(1 - s.dampening);
    if (s.weight_decay != 0) gradient = multiply_add(value, static_cast<float>(s.weight_decay), gradient);
    if (s.momentum != 0) {
      if (s.first) {
        momentum = gradient;
      } else if (tail) {
        momentum = multiply_add(momentum, factor, gradient * part);
      } else {
        momentum = multiply_add(gradient, part, momentum * factor);
      }
      gradient = s.nesterov ? multiply_add(momentum, factor, gradient) : momentum;
    }
    return multiply_add(gradient, static_cast<float>(-s.rate), value);
  }
  float adam(const AdamStep& s, bool tail, float value, float gradient, float& average, float& square) const {
    const double number = static_cast<double>(s.number);
    const auto part = static_cast<float>(1 - s.beta1);
    const auto correction = static_cast<float>(std::sqrt(1 - std::pow(s.beta2, number)));
    if (s.weight_decay != 0 && s.decoupled) value *= static_cast<float>(std::fma(-s.rate, s.weight_decay, 1.0));
    if (s.weight_decay != 0 && !s.decoupled)
      gradient = multiply_add(value, static_cast<float>(s.weight_decay), gradient);
    const float step = gradient - average;
    if (part < 0.5f) {
      average = multiply_add(part, step, average);
    } else {
      average = tail ? multiply_add(-(1 - part), step, gradient) : multiply_add(part - 1, step, gradient);
    }
    const float scaled = static_cast<float>(1 - s.beta2) * gradient, kept = static_cast<float>(s.beta2);
    square = tail ? multiply_add(square, kept, scaled * gradient) : multiply_add(scaled, gradient, square * kept);
    const float divisor = std::sqrt(square) / correction + static_cast<float>(s.eps);
    const auto rate = static_cast<float>(-(s.rate / (1 - std::pow(s.beta1, number))));
    return value + rate * average / divisor;
  }
};

// Numbers of all sizes, and now and then one that no arithmetic is at ease with.
std::vector<float> numbers(std::mt19937& random, std::size_t count) {
  using Limits = std::numeric_limits<float>;
  const float special[] = {0.0f,   -0.0f,   Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                           1e-40f, -1e-42f, Limits::max()};
  std::normal_distribution<float> normal;
  std::vector<float> result(count);
  for (float& value : result) {
    value = normal(random) * std::exp(4 * normal(random));
    if (random() % 40 == 0) value = special[random() % std::size(special)];
  }
  return result;
}

Bfloat16 narrowed(float value, bool fma) {
  if (std::isnan(value)) return fma ? 0xFFFF : 0x7FC0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<Bfloat16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i]);
    ASSERT_TRUE(same || (std::isnan(a[i]) && std::isnan(b[i]))) << what << "[" << i << "]: " << a[i] << ", " << b[i];
  }
}

// All arrays of an update begin `offset` elements behind a line of memory, with a number behind their end that must
// stay.
struct Arrays {
  Arrays(std::size_t elements, std::size_t elements_before, std::mt19937& random)
      : count(elements), offset(elements_before) {
    for (auto* array : {&values, &gradients, &first, &second, &old_values}) array->resize(count + offset + 17, kGuard);
    shadow.resize(count + offset + 33, 0x1234);
    narrow.resize(count + offset + 33);
    const auto fill = [&](std::vector<float>& array) {
      const auto drawn = numbers(random, count);
      std::copy(drawn.begin(), drawn.end(), at(array));
    };
    fill(values);
    fill(first);
    fill(second);
    for (float& value : second) value = std::fabs(value);
    draw(random);
  }
  void draw(std::mt19937& random) {
    const auto drawn = numbers(random, count);
    std::copy(drawn.begin(), drawn.end(), at(gradients));
    for (std::size_t i = 0; i < count; ++i) at(narrow)[i] = narrowed(drawn[i], true);
  }
  template <class T>
  T* at(std::vector<T>& array) const {
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(array.data()) % 64 / sizeof(T);
    return array.data() + (beyond == 0 ? 0 : 64 / sizeof(T) - beyond) + offset;
  }
  Stretch stretch(bool narrow_gradients, bool copies, bool stream) {
    Stretch result{count, at(values), nullptr, nullptr, nullptr, nullptr, stream};
    if (narrow_gradients) {
      result.narrow_gradients = at(narrow);
    } else {
      result.gradients = at(gradients);
    }
    if (copies) {
      result.shadow = at(shadow);
      result.old_values = at(old_values);
    }
    return result;
  }
  std::vector<float> of(std::vector<float>& array) const { return {at(array), at(array) + count}; }

  static constexpr float kGuard = 12345;
  std::size_t count, offset;
  std::vector<float> values, gradients, first, second, old_values;
  std::vector<Bfloat16> shadow, narrow;
};

// Runs `update` on the arrays and compares with what `reference` makes of each element.
template <class Update, class Element>
void compare(Arrays& arrays, const Stretch& stretch, bool fma, const Update& update, const Element& reference) {
  auto values = arrays.of(arrays.values), first = arrays.of(arrays.first), second = arrays.of(arrays.second);
  const auto old_values = values;
  for (std::size_t i = 0; i < arrays.count; ++i) {
    const float gradient = stretch.narrow_gradients
                               ? std::bit_cast<float>(static_cast<std::uint32_t>(stretch.narrow_gradients[i]) << 16)
                               : stretch.gradients[i];
    values[i] = reference(i >= arrays.count / 8 * 8, values[i], gradient, first[i], second[i]);
  }
  update();
  expect_same(arrays.of(arrays.values), values, "values");
  expect_same(arrays.of(arrays.first), first, "first state");
  expect_same(arrays.of(arrays.second), second, "second state");
  for (auto* array : {&arrays.values, &arrays.first, &arrays.old_values}) {
    ASSERT_EQ(arrays.at(*array)[arrays.count], Arrays::kGuard) << "written behind the end";
  }
  ASSERT_EQ(arrays.at(arrays.shadow)[arrays.count], 0x1234) << "written behind the end";
  if (!stretch.shadow) return;
  expect_same(arrays.of(arrays.old_values), old_values, "old values");
  for (std::size_t i = 0; i < arrays.count; ++i) {
    ASSERT_EQ(stretch.shadow[i], narrowed(arrays.at(arrays.values)[i], fma)) << "shadow[" << i << "]";
  }
}

// Three updates in each form: gradients of both types, with the copies and without, past the caches or not.
template <class Run>
void in_each_form(const Run& run) {
  std::mt19937 random(7);
  for (const std::size_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 1000, 1551}) {
    for (const std::size_t offset : {0, 1, 8}) {
      SCOPED_TRACE(testing::Message() << count << " elements from " << offset);
      Arrays arrays(count, offset, random);
      for (int form = 0; form < 8; ++form) {
        arrays.draw(random);
        run(arrays, arrays.stretch((form & 1) != 0, (form & 2) != 0, (form & 4) != 0), form % 3 + 1);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(UpdateKernels, SgdIsThatOfTheReferenceOnEveryTarget) {
  on_every_target([](bool fma) {
    for (const SgdStep& settings :
         {SgdStep{.rate = 0.1}, SgdStep{.rate = 0.1, .weight_decay = 0.3}, SgdStep{.rate = 0.1, .momentum = 0.9},
          SgdStep{.rate = 0.01, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.1},
          SgdStep{.rate = 0.01, .momentum = 0.7, .weight_decay = 0.1, .nesterov = true}}) {
      SCOPED_TRACE(testing::Message() << "momentum " << settings.momentum << ", decay " << settings.weight_decay);
      in_each_form([&](Arrays& arrays, const Stretch& stretch, int number) {
        SgdStep step = settings;
        step.first = number == 1;
        const Reference reference{fma};
        compare(
            arrays, stretch, fma,
            [&] { update_sgd(step, stretch, step.momentum == 0 ? nullptr : arrays.at(arrays.first)); },
            [&](bool tail, float value, float gradient, float& first, float&) {
              return reference.sgd(step, tail, value, gradient, first);
            });
      });
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(UpdateKernels, AdamIsThatOfTheReferenceOnEveryTarget) {
  on_every_target([](bool fma) {
    for (const AdamStep& settings :
         {AdamStep{.rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
          AdamStep{.rate = 0.1, .beta1 = 0.25, .beta2 = 0.3, .eps = 1e-3, .weight_decay = 0.1},
          AdamStep{.rate = 0.1, .beta1 = 0, .beta2 = 0.999, .eps = 0},
          AdamStep{.rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .decoupled = true}}) {
      SCOPED_TRACE(testing::Message() << "beta1 " << settings.beta1 << ", decay " << settings.weight_decay);
      in_each_form([&](Arrays& arrays, const Stretch& stretch, int number) {
        AdamStep step = settings;
        step.number = number;
        const Reference reference{fma};
        compare(
            arrays, stretch, fma,
            [&] { update_adam(step, stretch, arrays.at(arrays.first), arrays.at(arrays.second)); },
            [&](bool tail, float value, float gradient, float& first, float& second) {
              return reference.adam(step, tail, value, gradient, first, second);
            });
      });
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// Few different scores, so that many are equal; bfloat16 has the same ones.
TEST(FirstMaximum, IsWhereArgmaxFindsIt) {
  std::mt19937 random(7);
  on_every_target([&](bool) {
    for (const std::size_t classes : {1u, 2u, 3u, 7u, 8u, 10u, 31u, 64u, 65u, 257u, 1000u}) {
      constexpr std::size_t kRows = 200;
      std::vector<float> scores(kRows * classes);
      std::vector<Bfloat16> narrow(scores.size());
      std::vector<std::int64_t> targets(kRows);
      std::int64_t right = 0;
      for (std::size_t row = 0; row < kRows; ++row) {
        float* const first = scores.data() + row * classes;
        for (std::size_t i = 0; i < classes; ++i) first[i] = static_cast<float>(random() % 5) - 2;
        if (row == 0) first[0] = -std::numeric_limits<float>::infinity();
        const auto largest = std::max_element(first, first + classes) - first;  // the first of equal ones
        targets[row] = row % 2 == 0 ? largest : static_cast<std::int64_t>(random() % classes);
        right += targets[row] == largest;
      }
      for (std::size_t i = 0; i < scores.size(); ++i) {
        narrow[i] = static_cast<Bfloat16>(std::bit_cast<std::uint32_t>(scores[i]) >> 16);
      }
      EXPECT_EQ(count_first_maxima(scores.data(), targets.data(), kRows, classes), right) << classes << " classes";
      EXPECT_EQ(count_first_maxima(narrow.data(), targets.data(), kRows, classes), right) << classes << " classes";
    }
  });
}

TEST(FirstMaximum, ARowWithNanHasNone) {
  on_every_target([&](bool) {
    for (const std::size_t classes : {2u, 9u, 100u}) {
      for (std::size_t nan = 0; nan < classes; ++nan) {
        std::vector<float> scores(classes, 1);
        scores[nan] = std::numeric_limits<float>::quiet_NaN();
        for (std::size_t target = 0; target < classes; ++target) {
          const auto wanted = static_cast<std::int64_t>(target);
          EXPECT_EQ(count_first_maxima(scores.data(), &wanted, 1, classes), 0);
        }
      }
    }
  });
}

}  // namespace
}  // namespace dtrain::train::kernels
