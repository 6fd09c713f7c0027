// Cross entropy of rows of scores over a large vocabulary, and its gradient: the first kernel reads the scores once and
// keeps two numbers a row, the second reads them again and writes the gradient. Softmax, probabilities and a copy of
// bfloat16 scores in float32 never lie in memory.
//
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867), algorithm 3, and its
// parallel form for the threads of a block; label smoothing is that of arXiv:1512.00567.
//
// Bound: three passes over the scores, which are 2 bytes each in bfloat16 and 4 in float32, and about 40 operations an
// element. For 8,192 rows of 50,257 classes in bfloat16 (0.82 GB) 2.5 GB / 3.35 TB/s = 0.74 ms on an H100. libtorch's
// operators under autocast convert the scores to float32, write their logarithms, zeros for the gradient of these, the
// gradient in float32, and its conversion: 36 bytes a score, 15 GB.
#pragma once

#include "kernel.h"

namespace dtrain::train::cuda {

// Score: float, or std::uint16_t for bfloat16.
template <class Score>
struct CrossEntropyArguments {
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  const Score* scores = nullptr;  // rows * classes
  const std::int64_t* targets = nullptr;
  std::int64_t ignored = 0;  // rows with this target have no loss and no gradient
  float smoothing = 0;
  float* losses = nullptr;  // of each row, written by the first kernel; NaN for a target that is no class
  float* sums = nullptr;    // two numbers a row, from the first kernel for the second: maximum, logarithm of the sum
  const float* of_losses = nullptr;  // the gradient of each row's loss, for the second kernel
  Score* gradient = nullptr;         // rows * classes, written by the second kernel
};

// The sum of exp(score - maximum) over the scores seen so far, and the plain sum of the scores.
struct RunningSum {
  float maximum, sum, plain;
};

DTRAIN_DEVICE RunningSum empty_sum() {
  return {-INFINITY, 0, 0};
}

DTRAIN_DEVICE void add_score(RunningSum& so_far, float score) {
  if (score > so_far.maximum) {
    so_far.sum *= expf(so_far.maximum - score);
    so_far.maximum = score;
  }
  // Two infinities have no difference. NaN makes the sum NaN.
  if (!(so_far.maximum == -INFINITY && score == -INFINITY)) so_far.sum += expf(score - so_far.maximum);
  so_far.plain += score;
}

DTRAIN_DEVICE RunningSum merged(const RunningSum& a, const RunningSum& b) {
  const float maximum = a.maximum > b.maximum ? a.maximum : b.maximum;
  if (maximum == -INFINITY) return {maximum, a.sum + b.sum, a.plain + b.plain};
  return {maximum, a.sum * expf(a.maximum - maximum) + b.sum * expf(b.maximum - maximum), a.plain + b.plain};
}

// Divides a row between threads: single elements up to the first one where packs may begin, packs, single elements.
// Calls one(i) and pack(i) with places in the whole array. `other` is an array of the same shape, or null.
template <int n, class Score, class One, class Several>
DTRAIN_DEVICE void for_row(const Score* scores, const Score* other, std::int64_t begin, std::int64_t count, int thread,
                           const One& one, const Several& pack) {
  const auto misplaced = [&](const Score* array) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(array + begin) / sizeof(Score) % n);
  };
  std::int64_t head = (n - misplaced(scores)) % n;
  if (head > count || (other && misplaced(other) != misplaced(scores))) head = count;
  const std::int64_t packed = head + (count - head) / n * n;
  for (std::int64_t i = thread; i < head; i += kThreads) one(begin + i);
  for (std::int64_t i = head + n * thread; i < packed; i += n * kThreads) pack(begin + i);
  for (std::int64_t i = packed + thread; i < count; i += kThreads) one(begin + i);
}

// Shared memory of the first kernel.
struct RowSums {
  RunningSum of[kThreads];
};

// The first kernel. Any number of blocks, each of which has rows of its own.
template <class Block, class Score>
DTRAIN_DEVICE void cross_entropy(Block& block, const CrossEntropyArguments<Score>& a) {
  constexpr int kPack = 16 / sizeof(Score);
  RowSums& sums = block.shared();
  const auto scores = block.array(a.scores, a.rows * a.classes);
  for (std::int64_t row = block.index(); row < a.rows; row += block.blocks()) {
    block.each([&](int thread) {
      RunningSum sum = empty_sum();
      for_row<kPack>(
          a.scores, static_cast<const Score*>(nullptr), row * a.classes, a.classes, thread,
          [&](std::int64_t i) { add_score(sum, to_float(scores.template get<1>(i).lane[0])); },
          [&](std::int64_t i) {
            const auto pack = scores.template get<kPack>(i);
            for (int k = 0; k < kPack; ++k) add_score(sum, to_float(pack.lane[k]));
          });
      sums.of[thread] = sum;
    });
    for (int half = kThreads / 2; half > 0; half /= 2) {
      block.each([&](int thread) {
        if (thread < half) sums.of[thread] = merged(sums.of[thread], sums.of[thread + half]);
      });
    }
    block.each([&](int thread) {
      if (thread != 0) return;
      const RunningSum whole = sums.of[0];
      const float logarithm = logf(whole.sum);
      const std::int64_t target = block.array(a.targets, a.rows).template get<1>(row).lane[0];
      float loss = NAN;
      if (target == a.ignored) {
        loss = 0;
      } else if (target >= 0 && target < a.classes) {
        const float score = to_float(scores.template get<1>(row * a.classes + target).lane[0]);
        loss = logarithm - (score - whole.maximum);
        if (a.smoothing > 0) {
          const float mean = logarithm - (whole.plain / static_cast<float>(a.classes) - whole.maximum);
          loss = (1 - a.smoothing) * loss + a.smoothing * mean;
        }
      }
      block.array(a.losses, a.rows).template put<1>(row, {loss});
      block.array(a.sums, 2 * a.rows).template put<2>(2 * row, {whole.maximum, logarithm});
    });
  }
}

// What is the same for all scores of a row.
struct RowFactors {
  float maximum, logarithm, of_loss, share;
  std::int64_t target;
  bool ignored;
};

// The second kernel.
template <class Block, class Score>
DTRAIN_DEVICE void cross_entropy_gradient(Block& block, const CrossEntropyArguments<Score>& a) {
  constexpr int kPack = 16 / sizeof(Score);
  RowFactors& shared = block.shared();
  const auto scores = block.array(a.scores, a.rows * a.classes);
  const auto gradient = block.array(a.gradient, a.rows * a.classes);
  for (std::int64_t row = block.index(); row < a.rows; row += block.blocks()) {
    block.each([&](int thread) {
      if (thread != 0) return;
      const auto sums = block.array(a.sums, 2 * a.rows).template get<2>(2 * row);
      const std::int64_t target = block.array(a.targets, a.rows).template get<1>(row).lane[0];
      shared = {sums.lane[0],
                sums.lane[1],
                block.array(a.of_losses, a.rows).template get<1>(row).lane[0],
                a.smoothing / static_cast<float>(a.classes),
                row * a.classes + target,
                target == a.ignored};
    });
    block.each([&](int thread) {
      const RowFactors f = shared;
      const auto of_score = [&](std::int64_t i, Score score) {
        float probability = expf(to_float(score) - f.maximum - f.logarithm) - f.share;
        if (i == f.target) probability -= 1 - a.smoothing;
        return from_float<Score>(f.ignored ? 0 : probability * f.of_loss);
      };
      for_row<kPack>(
          a.scores, a.gradient, row * a.classes, a.classes, thread,
          [&](std::int64_t i) { gradient.template put<1>(i, {of_score(i, scores.template get<1>(i).lane[0])}); },
          [&](std::int64_t i) {
            auto pack = scores.template get<kPack>(i);
            for (int k = 0; k < kPack; ++k) pack.lane[k] = of_score(i + k, pack.lane[k]);
            gradient.template put<kPack>(i, pack);
          });
    });
  }
}

}  // namespace dtrain::train::cuda
