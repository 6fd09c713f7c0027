// LAMB of flat parameters: the direction of each parameter's step is AdamW's, and its length depends on the norms of
// the whole parameter and of its direction. Three kernels update many parameters that follow each other: direct_lamb()
// updates both moments and sums squares of values and directions; trust_lamb() adds the sums of each parameter;
// move_lamb() updates the values and writes their copy in a narrower type.
//
// Algorithm: You and others, "Large Batch Optimization for Deep Learning" (arXiv:1904.00962), algorithm 2 with the
// identity for phi. The operations and their order are those of LambRule (model/optimizers/lamb.cpp), and of the norms
// on a CPU (model/gradient_norm.h): each line of 64 bytes has its sum in float64, and lines are summed along the binary
// tree over their numbers. A part of a parameter is a branch of this tree, which one block sums. So the bits depend
// neither on the GPU nor on the other parameters of a launch. They are those of a CPU, except for the square root:
// libtorch's on CPUs, by MKL, is not always the nearest number.
//
// Bound: the directions are computed twice, which takes less memory than to keep them: direct_lamb() 24 bytes a
// parameter (reads gradient, value and two moments, writes two), move_lamb() 16, 18 with the copy: 42 bytes and about
// 40 operations, 5 of them in float64. 124 million parameters take at least 5.2 GB / 3.35 TB/s = 1.6 ms on an H100.
// libtorch's operators take about 170 bytes, in 30 launches for each parameter.
#pragma once

#include "update.h"

namespace dtrain::train::cuda {

struct LambArguments {
  static constexpr int kMost = 256;  // parameters of a launch
  FlatArguments flat;                // all parameters, one after the other
  float* average = nullptr;          // of the gradient
  float* square = nullptr;           // average of the gradient's square
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double* sums = nullptr;    // two for each part: squares of the values, and of the directions
  double* trusts = nullptr;  // one for each parameter: the quotient of its norms
  int parameters = 0;
  int parts[kMost] = {};          // of the parameters up to and with each
  std::int64_t ends[kMost] = {};  // of the parameters, in elements
};

inline constexpr int kLinesOfLambPart = kThreads, kElementsOfLine = 16;
inline constexpr int kElementsOfLambPart = kLinesOfLambPart * kElementsOfLine;

// Adds a parameter that ends at `end`, as the next one.
inline void add_lamb_parameter(LambArguments& a, std::int64_t end) {
  const int i = a.parameters++;
  const std::int64_t elements = end - (i > 0 ? a.ends[i - 1] : 0);
  a.ends[i] = end;
  a.parts[i] =
      (i > 0 ? a.parts[i - 1] : 0) + static_cast<int>((elements + kElementsOfLambPart - 1) / kElementsOfLambPart);
  a.flat.count = end;
}
inline int parts_of_lamb(const LambArguments& a) {
  return a.parts[a.parameters - 1];
}

// What is the same for all elements.
struct LambFactors {
  FlatNumbers flat;
  float new_part, square_old, square_new, average_corrected, square_corrected, eps, decay;
  bool has_decay, packs;
};

template <class Block>
DTRAIN_DEVICE LambFactors lamb_factors(Block& block, const LambArguments& a) {
  LambFactors f;
  f.flat = flat_numbers(block, a.flat);
  f.new_part = static_cast<float>(1 - a.beta1);
  f.square_old = static_cast<float>(a.beta2);
  f.square_new = static_cast<float>(1 - a.beta2);
  f.average_corrected = static_cast<float>(1 / (1 - pow(a.beta1, f.flat.number)));
  f.square_corrected = static_cast<float>(1 / (1 - pow(a.beta2, f.flat.number)));
  f.eps = static_cast<float>(a.eps);
  f.decay = static_cast<float>(a.weight_decay);
  f.has_decay = a.weight_decay != 0;
  f.packs = f.flat.packs && is_aligned(a.average, 16) && is_aligned(a.square, 16);
  return f;
}

// The elements of a part, all of one parameter.
struct LambPart {
  int parameter;
  std::int64_t begin, end;
  bool packs;
};

DTRAIN_DEVICE LambPart lamb_part(const LambArguments& a, const LambFactors& f, int part) {
  int low = 0, high = a.parameters - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (part < a.parts[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const std::int64_t begin_of_parameter = low > 0 ? a.ends[low - 1] : 0;
  const int first = low > 0 ? a.parts[low - 1] : 0;
  LambPart result{low, begin_of_parameter + static_cast<std::int64_t>(part - first) * kElementsOfLambPart, a.ends[low],
                  false};
  if (result.end > result.begin + kElementsOfLambPart) result.end = result.begin + kElementsOfLambPart;
  result.packs = f.packs && result.begin % 4 == 0 && result.end % 4 == 0;
  return result;
}

// The direction of an element's step from its averages.
DTRAIN_DEVICE float lamb_direction(const LambFactors& f, float value, float average, float square) {
  const float direction = average * f.average_corrected / (sqrtf(square * f.square_corrected) + f.eps);
  return f.has_decay ? fmaf(value, f.decay, direction) : direction;
}

// Shared memory of the first kernel. A line has a place more than elements, so that threads which read a line each read
// from all banks.
struct LambSums {
  LambFactors factors;
  float values[kLinesOfLambPart][kElementsOfLine + 1];
  float directions[kLinesOfLambPart][kElementsOfLine + 1];
  double of_values[kLinesOfLambPart];
  double of_directions[kLinesOfLambPart];
};

// Updates the moments of a part's elements in packs of `n`, and notes values and directions: zeros beyond its end.
template <int n, class Block>
DTRAIN_DEVICE void lamb_moments(Block& block, const LambArguments& a, const LambPart& part, int thread) {
  LambSums& shared = block.shared();
  const LambFactors f = shared.factors;
  const auto averages = block.array(a.average, a.flat.count);
  const auto squares = block.array(a.square, a.flat.count);
  for (int place = n * thread; place < kElementsOfLambPart; place += n * kThreads) {
    const std::int64_t begin = part.begin + place;
    Pack<float, n> value{}, direction{};
    if (begin < part.end) {
      value = block.array(a.flat.values, a.flat.count).template get<n>(begin);
      const Pack<float, n> gradient = gradients_at<n>(block, a.flat, f.flat, begin);
      Pack<float, n> average = averages.template get<n>(begin), square = squares.template get<n>(begin);
      for (int i = 0; i < n; ++i) {
        const float g = gradient.lane[i];
        average.lane[i] = lerp(average.lane[i], g, f.new_part);
        square.lane[i] = fmaf(f.square_new * g, g, square.lane[i] * f.square_old);
        direction.lane[i] = lamb_direction(f, value.lane[i], average.lane[i], square.lane[i]);
      }
      averages.template put<n>(begin, average);
      squares.template put<n>(begin, square);
    }
    for (int i = 0; i < n; ++i) {
      shared.values[place / kElementsOfLine][place % kElementsOfLine + i] = value.lane[i];
      shared.directions[place / kElementsOfLine][place % kElementsOfLine + i] = direction.lane[i];
    }
  }
}

// Returns the sum of a line's squares.
DTRAIN_DEVICE double sum_line(const float* line) {
  const auto square = [&](int i) { return static_cast<double>(line[i]) * static_cast<double>(line[i]); };
  double sums[kElementsOfLine / 2];
  DTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) sums[i] = square(i) + square(i + 8);
  DTRAIN_UNROLL
  for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// The first kernel. Any number of blocks. Shared memory: LambSums.
template <class Block>
DTRAIN_DEVICE void direct_lamb(Block& block, const LambArguments& a) {
  LambSums& shared = block.shared();
  block.each([&](int thread) {
    if (thread == 0) shared.factors = lamb_factors(block, a);
  });
  const int parts = a.parts[a.parameters - 1];
  for (int p = block.index(); p < parts; p += block.blocks()) {
    block.each([&](int thread) {
      if (shared.factors.flat.skips) return;
      const LambPart part = lamb_part(a, shared.factors, p);
      if (part.packs) {
        lamb_moments<4>(block, a, part, thread);
      } else {
        lamb_moments<1>(block, a, part, thread);
      }
    });
    block.each([&](int thread) {
      shared.of_values[thread] = sum_line(shared.values[thread]);
      shared.of_directions[thread] = sum_line(shared.directions[thread]);
    });
    for (int width = 1; width < kLinesOfLambPart; width *= 2) {
      block.each([&](int thread) {
        const int line = 2 * width * thread;
        if (line >= kLinesOfLambPart) return;
        shared.of_values[line] += shared.of_values[line + width];
        shared.of_directions[line] += shared.of_directions[line + width];
      });
    }
    block.each([&](int thread) {
      if (thread == 0) {
        const auto sums = block.array(a.sums, 2 * static_cast<std::int64_t>(parts));
        sums.template put<1>(2 * p, {shared.of_values[0]});
        sums.template put<1>(2 * p + 1, {shared.of_directions[0]});
      }
    });
  }
}

// A sum along the binary tree over the numbers of what is added, one after the other.
class TreeSum {
 public:
  DTRAIN_DEVICE void add(double x) {
    int level = 0;
    for (; count_ >> level & 1; ++level) x = branches_[level] + x;
    branches_[level] = x;
    ++count_;
  }
  DTRAIN_DEVICE double total() const {
    double total = 0;
    for (int level = 0; level < kLevels; ++level) {
      if (count_ >> level & 1) total = branches_[level] + total;
    }
    return total;
  }

 private:
  static constexpr int kLevels = 31;
  int count_ = 0;
  double branches_[kLevels];  // the sum of 2^level, where count_ has that bit
};

// Shared memory of the second kernel.
struct LambNorms {
  double values[kThreads];
  double directions[kThreads];
};

// The second kernel: a block for each parameter. Each thread adds the sums of a branch of parts. The quotient is 1 if
// one of the norms is 0.
template <class Block>
DTRAIN_DEVICE void trust_lamb(Block& block, const LambArguments& a) {
  LambNorms& shared = block.shared();
  const int parameter = block.index();
  const int first = parameter > 0 ? a.parts[parameter - 1] : 0, end = a.parts[parameter];
  int parts_of_thread = 1;
  while (parts_of_thread * kThreads < end - first) parts_of_thread *= 2;
  block.each([&](int thread) {
    const auto sums = block.array(a.sums, 2 * static_cast<std::int64_t>(a.parts[a.parameters - 1]));
    TreeSum values, directions;
    const int begin = first + thread * parts_of_thread;
    for (int p = begin; p < begin + parts_of_thread && p < end; ++p) {
      values.add(sums.template get<1>(2 * p).lane[0]);
      directions.add(sums.template get<1>(2 * p + 1).lane[0]);
    }
    shared.values[thread] = values.total();
    shared.directions[thread] = directions.total();
  });
  for (int width = 1; width < kThreads; width *= 2) {
    block.each([&](int thread) {
      const int sum = 2 * width * thread;
      if (sum >= kThreads) return;
      shared.values[sum] += shared.values[sum + width];
      shared.directions[sum] += shared.directions[sum + width];
    });
  }
  block.each([&](int thread) {
    if (thread != 0) return;
    const double values = sqrt(shared.values[0]), direction = sqrt(shared.directions[0]);
    const double trust = values == 0 || direction == 0 ? 1 : values / direction;
    block.array(a.trusts, a.parameters).template put<1>(parameter, {trust});
  });
}

// The third kernel. Any number of blocks. Shared memory: LambFactors.
template <class Block>
DTRAIN_DEVICE void move_lamb(Block& block, const LambArguments& a) {
  LambFactors& factors = block.shared();
  block.each([&](int thread) {
    if (thread == 0) factors = lamb_factors(block, a);
  });
  block.each([&](int thread) {
    const LambFactors f = factors;
    if (f.flat.skips) return;
    const int parts = a.parts[a.parameters - 1];
    for (int p = block.index(); p < parts; p += block.blocks()) {
      const LambPart part = lamb_part(a, f, p);
      const auto trusts = block.array(a.trusts, a.parameters);
      const auto step = static_cast<float>(f.flat.rate * trusts.template get<1>(part.parameter).lane[0]);
      const auto move = [&](auto n, std::int64_t begin) {
        constexpr int kCount = n.value;
        const auto of = [&](const float* data) { return block.array(data, a.flat.count).template get<kCount>(begin); };
        Pack<float, kCount> value = of(a.flat.values);
        const Pack<float, kCount> average = of(a.average), square = of(a.square);
        for (int i = 0; i < kCount; ++i) {
          value.lane[i] = value.lane[i] - lamb_direction(f, value.lane[i], average.lane[i], square.lane[i]) * step;
        }
        put_values<kCount>(block, a.flat, begin, value);
      };
      const std::int64_t packed = part.packs ? part.end : part.begin;
      for (std::int64_t i = part.begin + 4 * thread; i < packed; i += 4 * kThreads) move(Number<4>(), i);
      for (std::int64_t i = packed + thread; i < part.end; i += kThreads) move(Number<1>(), i);
    }
  });
}

}  // namespace dtrain::train::cuda
