// The sum of a residual and the output of a layer, and layer norm or RMS norm of the sum, in one pass over memory: a
// block reads rows of both once, writes their sum, keeps it in registers until mean and deviation are known, and writes
// the normalized rows. layer_norm.h has the gradients.
//
// Sources: those of layer_norm.h; that the sum is part of the norm's kernel is the prenorm of FlashAttention's
// layer_norm (Dao, github.com/Dao-AILab/flash-attention, csrc/layer_norm).
//
// Bound, a value, with a residual in float32 and layers in bfloat16 (autocast): 12 bytes (reads 4 + 2, writes 4 + 2);
// its gradient 16 (reads 4 + 2 + 4, writes 4 + 2). About 10 and 16 operations, so memory: 8,192 rows of 768 take at
// least 23 us and 30 us on an H100 (3.35 TB/s). libtorch's operators (addition, norm in float32, the casts before and
// behind it, addition of the gradients, cast) take 24 and 36 bytes, so 45 us and 68 us.
#pragma once

#include "layer_norm.h"

namespace dtrain::train::cuda {

// Value, Result: float, or std::uint16_t for bfloat16.
template <class Value, class Result = Value>
struct ResidualNormArguments {
  std::int64_t rows = 0;
  std::int64_t columns = 0;         // at most kMostColumnsOfNorm
  const Value* residual = nullptr;  // rows * columns
  const Result* inputs = nullptr;   // rows * columns
  const Value* weight = nullptr;    // columns
  const Value* bias = nullptr;      // columns; null: there is none
  float eps = 0;                    // added to the variance, or to the mean square
  Value* sums = nullptr;            // rows * columns: residual + inputs
  Result* results = nullptr;        // rows * columns: the normalized sums
  float* means = nullptr;           // of the rows; null: RMS norm
  float* reciprocals = nullptr;     // 1 / standard deviation, or 1 / root of the mean square, of the rows
};

// What a thread keeps from phase to phase.
template <int packs>
struct ResidualThread {
  static constexpr int kRows = 4 / packs, kColumns = 4 * packs;
  float values[kRows][kColumns];  // the sums, then these minus their mean
};

// The kernel, of blocks_of_norm() blocks. The sums are rounded before they are normalized.
template <int packs, class Block, class Value, class Result>
DTRAIN_DEVICE void residual_norm(Block& block, const ResidualNormArguments<Value, Result>& a) {
  using Thread = ResidualThread<packs>;
  NormSums& sums = block.shared();
  auto threads = block.template of_threads<Thread>();
  const std::int64_t all = a.rows * a.columns;
  const std::int64_t groups = kThreads / norm_width(a.columns), at_once = Thread::kRows * groups;
  const auto share_of = [&](int thread) {
    return norm_share(a.columns, thread, a.residual, a.inputs, a.weight, a.bias, a.sums, a.results);
  };
  for (std::int64_t first = block.index() * at_once; first < a.rows; first += block.blocks() * at_once) {
    block.each([&](int thread) {
      Thread& my = threads[thread];
      const NormShare share = share_of(thread);
      float added[Thread::kRows][Thread::kColumns];
      // All reads come before the first use, so that many are on the way at once. A row beyond the end is all 0.
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        if (row < a.rows) {
          get_columns<packs>(share, block.array(a.residual, all), row * a.columns, my.values[r]);
          get_columns<packs>(share, block.array(a.inputs, all), row * a.columns, added[r]);
        } else {
          DTRAIN_UNROLL
          for (int i = 0; i < Thread::kColumns; ++i) my.values[r][i] = added[r][i] = 0;
        }
      }
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        float sum = 0;
        DTRAIN_UNROLL
        for (int i = 0; i < Thread::kColumns; ++i) {
          my.values[r][i] = to_float(from_float<Value>(my.values[r][i] + added[r][i]));
          sum += my.values[r][i];
        }
        sums.of_one[r][thread] = sum;
        if (row < a.rows) put_columns<packs, Value>(share, block.array(a.sums, all), row * a.columns, my.values[r]);
      }
    });
    if (a.means) add_norm_sums<Thread::kRows>(block);
    block.each([&](int thread) {
      Thread& my = threads[thread];
      const NormShare share = share_of(thread);
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        const float mean = a.means ? sum_of_row(sums, r, share) / static_cast<float>(a.columns) : 0;
        float squares = 0;
        DTRAIN_UNROLL
        for (int i = 0; i < Thread::kColumns; ++i) {
          my.values[r][i] = share.column(i) < share.columns ? my.values[r][i] - mean : 0;
          squares = fmaf(my.values[r][i], my.values[r][i], squares);
        }
        sums.of_one[r][thread] = squares;
        if (a.means && row < a.rows && share.lane == 0) block.array(a.means, a.rows).template put<1>(row, {mean});
      }
    });
    add_norm_sums<Thread::kRows>(block);
    block.each([&](int thread) {
      const Thread& my = threads[thread];
      const NormShare share = share_of(thread);
      float weight[Thread::kColumns], bias[Thread::kColumns];
      get_columns<packs>(share, block.array(a.weight, a.columns), 0, weight);
      if (a.bias) get_columns<packs>(share, block.array(a.bias, a.columns), 0, bias);
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        if (row >= a.rows) continue;
        const float variance = sum_of_row(sums, r, share) / static_cast<float>(a.columns);
        const float reciprocal = 1 / sqrtf(variance + a.eps);
        float results[Thread::kColumns];
        DTRAIN_UNROLL
        for (int i = 0; i < Thread::kColumns; ++i) {
          results[i] = my.values[r][i] * reciprocal * weight[i];
          if (a.bias) results[i] += bias[i];
        }
        put_columns<packs, Result>(share, block.array(a.results, all), row * a.columns, results);
        if (share.lane == 0) block.array(a.reciprocals, a.rows).template put<1>(row, {reciprocal});
      }
    });
  }
}

}  // namespace dtrain::train::cuda
