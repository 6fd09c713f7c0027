// The gradients of layer norm and of RMS norm in one pass over memory: a block reads rows of the inputs and of the
// results' gradient once, keeps them in registers, writes the inputs' gradient, and sums up what its rows add to the
// gradients of weight and bias. A second kernel adds the sums of all blocks. Both add in an order that depends on the
// sizes alone, so the same gradients give the same bits on every GPU. Where the inputs are sums with a residual
// (residual_norm.h), the first kernel adds the gradient that these have from elsewhere, too.
//
// Sources: Ba, Kiros and Hinton, "Layer Normalization" (arXiv:1607.06450); Zhang and Sennrich, "Root Mean Square Layer
// Normalization" (arXiv:1910.07467); the division into partial sums and a second kernel is that of NVIDIA's Apex
// (apex/contrib/csrc/layer_norm).
//
// Bound: in float32 12 bytes an element (reads both, writes one) and about 15 operations, so memory: 8,192 rows of 768
// take at least 75 MB / 3.35 TB/s = 23 us on an H100; the sums add 4%. libtorch reads both arrays once more for the
// gradients of weight and bias: 20 bytes, 38 us. Its forward pass takes the 8 bytes that it has to, so there is no
// kernel for it here.
#pragma once

#include "kernel.h"

namespace dtrain::train::cuda {

// Value, Result: float, or std::uint16_t for bfloat16. `residual`: the inputs are sums with a residual.
template <class Value, class Result = Value, bool residual = false>
struct NormArguments {
  std::int64_t rows = 0;
  std::int64_t columns = 0;            // at most kMostColumnsOfNorm
  const Value* inputs = nullptr;       // rows * columns
  const Result* of_results = nullptr;  // rows * columns: their gradient
  const Value* weight = nullptr;       // columns
  const float* means = nullptr;        // of the rows, from the forward pass; null: RMS norm
  const float* reciprocals = nullptr;  // 1 / standard deviation, or 1 / root of the mean square, of the rows
  Value* gradient = nullptr;           // rows * columns: that of the inputs
  float* sums = nullptr;               // norm_parts() * 2 * columns: for the gradients of weight and bias
  // With a residual alone.
  const Value* added = nullptr;  // rows * columns: added to the gradient of the inputs; null: nothing
  Result* copy = nullptr;        // rows * columns: of that gradient; null: none
};

template <class Value>
struct AddNormArguments {
  const float* sums = nullptr;
  std::int64_t parts = 0;
  std::int64_t columns = 0;
  Value* of_weight = nullptr;  // columns
  Value* of_bias = nullptr;    // columns; null: there is no bias
};

inline constexpr std::int64_t kMostColumnsOfNorm = 4096;

// The number of packs of four columns that a thread has of each row: the kernel's template argument.
DTRAIN_DEVICE int norm_packs(std::int64_t columns) {
  return columns <= 4 * kThreads ? 1 : columns <= 8 * kThreads ? 2 : 4;
}

// The number of threads for a row. The other threads of the block have other rows.
DTRAIN_DEVICE int norm_width(std::int64_t columns) {
  return columns <= kThreads ? kThreads / 4 : columns <= 2 * kThreads ? kThreads / 2 : kThreads;
}

// Returns the number of blocks: enough for every GPU to read memory at its full rate.
inline int blocks_of_norm(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kMost = 256;
  const std::int64_t at_once = 4 / norm_packs(columns) * (kThreads / norm_width(columns));
  const std::int64_t blocks = (rows + at_once - 1) / at_once;
  return static_cast<int>(blocks < kMost ? blocks : kMost);
}

// Returns the number of partial sums of each column.
inline std::int64_t norm_parts(std::int64_t rows, std::int64_t columns) {
  return blocks_of_norm(rows, columns) * std::int64_t{kThreads / norm_width(columns)};
}

inline constexpr int kColumnsOfAdd = 32;  // of a block of the second kernel

inline int blocks_of_add_norm(std::int64_t columns, bool bias) {
  return static_cast<int>(((bias ? 2 : 1) * columns + kColumnsOfAdd - 1) / kColumnsOfAdd);
}

// The columns of a row that a thread has: packs of adjacent ones if rows consist of such packs, else single ones.
struct NormShare {
  int columns, width, lane, group;
  bool adjacent;  // depends on the number of columns alone, as the order of sums does
  bool packs;     // adjacent columns are also read at once

  DTRAIN_DEVICE int column(int i) const { return adjacent ? 4 * (lane + width * (i / 4)) + i % 4 : lane + width * i; }
};

// `arrays`: those of all rows, and of a value for each column; null: there is none.
template <class... Values>
DTRAIN_DEVICE NormShare norm_share(std::int64_t columns, int thread, const Values*... arrays) {
  NormShare share;
  share.columns = static_cast<int>(columns);
  share.width = norm_width(columns);
  share.lane = thread % share.width;
  share.group = thread / share.width;
  share.adjacent = columns % 4 == 0;
  share.packs = share.adjacent && (is_aligned(arrays, 4 * sizeof(Values)) && ...);
  return share;
}

template <class Value, class Result, bool residual>
DTRAIN_DEVICE NormShare norm_share(const NormArguments<Value, Result, residual>& a, int thread) {
  if constexpr (residual) {
    return norm_share(a.columns, thread, a.inputs, a.of_results, a.weight, a.gradient, a.added, a.copy);
  } else {
    return norm_share(a.columns, thread, a.inputs, a.of_results, a.weight, a.gradient);
  }
}

// Reads the thread's columns of the row that begins at `begin`. Those beyond the end become 0.
template <int packs, class Array>
DTRAIN_DEVICE void get_columns(const NormShare& share, const Array& array, std::int64_t begin,
                               float (&values)[4 * packs]) {
  DTRAIN_UNROLL
  for (int p = 0; p < packs; ++p) {
    if (share.packs) {
      const int first = share.column(4 * p);
      const bool inside = first < share.columns;
      const auto pack = array.template get<4>(begin + (inside ? first : 0));
      DTRAIN_UNROLL
      for (int k = 0; k < 4; ++k) values[4 * p + k] = inside ? to_float(pack.lane[k]) : 0;
    } else {
      DTRAIN_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int column = share.column(4 * p + k);
        values[4 * p + k] = column < share.columns ? to_float(array.template get<1>(begin + column).lane[0]) : 0;
      }
    }
  }
}

template <int packs, class Value, class Array>
DTRAIN_DEVICE void put_columns(const NormShare& share, const Array& array, std::int64_t begin,
                               const float (&values)[4 * packs]) {
  DTRAIN_UNROLL
  for (int p = 0; p < packs; ++p) {
    if (share.packs) {
      Pack<Value, 4> pack;
      DTRAIN_UNROLL
      for (int k = 0; k < 4; ++k) pack.lane[k] = from_float<Value>(values[4 * p + k]);
      const int first = share.column(4 * p);
      if (first < share.columns) array.template put<4>(begin + first, pack);
    } else {
      DTRAIN_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int column = share.column(4 * p + k);
        if (column < share.columns) array.template put<1>(begin + column, {from_float<Value>(values[4 * p + k])});
      }
    }
  }
}

// What a thread keeps from phase to phase.
template <int packs>
struct NormThread {
  static constexpr int kRows = 4 / packs, kColumns = 4 * packs;
  float of_weight[kColumns], of_bias[kColumns];  // sums over the rows so far
  float normalized[kRows][kColumns];             // at first the inputs
  float weighted[kRows][kColumns];               // gradients of the results, then those of the normalized inputs
  float reciprocal[kRows];
};

// Shared memory: up to two sums for each of up to four rows of a thread, over the columns of a thread, of eight
// threads, of 64 threads.
struct NormSums {
  float of_one[8][kThreads];
  float of_eight[8][kThreads / 8];
  float of_64[8][kThreads / 64];
};

// Adds up the first kSums of sums.of_one. The order in which a thread begins spreads a warp over the banks of shared
// memory.
template <int kSums, class Block>
DTRAIN_DEVICE void add_norm_sums(Block& block) {
  constexpr int kWarp = kThreads / 8;
  NormSums& sums = block.shared();
  block.each([&](int thread) {
    const int which = thread / kWarp, lane = thread % kWarp;
    if (which >= kSums) return;
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += sums.of_one[which][8 * lane + (i + lane / 4) % 8];
    sums.of_eight[which][lane] = sum;
  });
  block.each([&](int thread) {
    const int which = thread / kWarp, lane = thread % kWarp;
    if (which >= kSums || lane >= kThreads / 64) return;
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += sums.of_eight[which][8 * lane + i];
    sums.of_64[which][lane] = sum;
  });
}

// Returns such a sum over all columns of the thread's row.
DTRAIN_DEVICE float sum_of_row(const NormSums& sums, int which, const NormShare& share) {
  const int parts = share.width / 64;
  float sum = 0;
  for (int i = share.group * parts; i < (share.group + 1) * parts; ++i) sum += sums.of_64[which][i];
  return sum;
}

// The first kernel, of blocks_of_norm() blocks.
template <int packs, class Block, class Value, class Result, bool residual>
DTRAIN_DEVICE void norm_gradient(Block& block, const NormArguments<Value, Result, residual>& a) {
  using Thread = NormThread<packs>;
  NormSums& sums = block.shared();
  auto threads = block.template of_threads<Thread>();
  const auto inputs = block.array(a.inputs, a.rows * a.columns);
  const auto of_results = block.array(a.of_results, a.rows * a.columns);
  const auto gradient = block.array(a.gradient, a.rows * a.columns);
  const std::int64_t groups = kThreads / norm_width(a.columns), at_once = Thread::kRows * groups;
  block.each([&](int thread) {
    DTRAIN_UNROLL
    for (int i = 0; i < Thread::kColumns; ++i) threads[thread].of_weight[i] = threads[thread].of_bias[i] = 0;
  });
  for (std::int64_t first = block.index() * at_once; first < a.rows; first += block.blocks() * at_once) {
    block.each([&](int thread) {
      Thread& my = threads[thread];
      const NormShare share = norm_share(a, thread);
      // All reads come before the first use, so that many are on the way at once. A row beyond the end is all 0.
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        if (row < a.rows) {
          get_columns<packs>(share, inputs, row * a.columns, my.normalized[r]);
          get_columns<packs>(share, of_results, row * a.columns, my.weighted[r]);
        } else {
          DTRAIN_UNROLL
          for (int i = 0; i < Thread::kColumns; ++i) my.normalized[r][i] = my.weighted[r][i] = 0;
        }
      }
      float weight[Thread::kColumns];
      get_columns<packs>(share, block.array(a.weight, a.columns), 0, weight);
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        const bool inside = row < a.rows;
        const float mean = inside && a.means ? block.array(a.means, a.rows).template get<1>(row).lane[0] : 0;
        my.reciprocal[r] = inside ? block.array(a.reciprocals, a.rows).template get<1>(row).lane[0] : 0;
        float plain = 0, with_input = 0;
        DTRAIN_UNROLL
        for (int i = 0; i < Thread::kColumns; ++i) {
          const float of_result = my.weighted[r][i];
          my.normalized[r][i] = (my.normalized[r][i] - mean) * my.reciprocal[r];
          my.weighted[r][i] = of_result * weight[i];
          my.of_weight[i] = fmaf(of_result, my.normalized[r][i], my.of_weight[i]);
          my.of_bias[i] += of_result;
          plain += my.weighted[r][i];
          with_input = fmaf(my.weighted[r][i], my.normalized[r][i], with_input);
        }
        sums.of_one[2 * r][thread] = plain;
        sums.of_one[2 * r + 1][thread] = with_input;
      }
    });
    add_norm_sums<2 * Thread::kRows>(block);
    block.each([&](int thread) {
      const Thread& my = threads[thread];
      const NormShare share = norm_share(a, thread);
      float added[Thread::kRows][Thread::kColumns];
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        if (residual && a.added && row < a.rows) {
          get_columns<packs>(share, block.array(a.added, a.rows * a.columns), row * a.columns, added[r]);
        }
      }
      DTRAIN_UNROLL
      for (int r = 0; r < Thread::kRows; ++r) {
        const std::int64_t row = first + r * groups + share.group;
        if (row >= a.rows) continue;
        const auto columns = static_cast<float>(a.columns);
        const float mean = a.means ? sum_of_row(sums, 2 * r, share) / columns : 0;
        const float mean_with_input = sum_of_row(sums, 2 * r + 1, share) / columns;
        float of_inputs[Thread::kColumns];
        DTRAIN_UNROLL
        for (int i = 0; i < Thread::kColumns; ++i) {
          of_inputs[i] = my.reciprocal[r] * (my.weighted[r][i] - mean - my.normalized[r][i] * mean_with_input);
          if (residual && a.added) of_inputs[i] += added[r][i];
        }
        put_columns<packs, Value>(share, gradient, row * a.columns, of_inputs);
        if (residual && a.copy) {
          put_columns<packs, Result>(share, block.array(a.copy, a.rows * a.columns), row * a.columns, of_inputs);
        }
      }
    });
  }
  block.each([&](int thread) {
    const NormShare share = norm_share(a, thread);
    const auto all = block.array(a.sums, block.blocks() * groups * 2 * a.columns);
    const std::int64_t begin = (block.index() * groups + share.group) * 2 * a.columns;
    DTRAIN_UNROLL
    for (int i = 0; i < Thread::kColumns; ++i) {
      if (share.column(i) >= a.columns) continue;
      all.template put<1>(begin + share.column(i), {threads[thread].of_weight[i]});
      all.template put<1>(begin + a.columns + share.column(i), {threads[thread].of_bias[i]});
    }
  });
}

// Shared memory of the second kernel.
struct ColumnSums {
  float of[kThreads / kColumnsOfAdd][kColumnsOfAdd];
};

// The second kernel, of blocks_of_add_norm() blocks.
template <class Block, class Value>
DTRAIN_DEVICE void add_norm(Block& block, const AddNormArguments<Value>& a) {
  constexpr int kSlices = kThreads / kColumnsOfAdd;
  ColumnSums& sums = block.shared();
  const std::int64_t begin = static_cast<std::int64_t>(block.index()) * kColumnsOfAdd, all = 2 * a.columns;
  block.each([&](int thread) {
    const int slice = thread / kColumnsOfAdd, lane = thread % kColumnsOfAdd;
    const auto parts = block.array(a.sums, a.parts * all);
    float sum = 0;
    if (begin + lane < all) {
      for (std::int64_t p = slice; p < a.parts; p += kSlices) {
        sum += parts.template get<1>(p * all + begin + lane).lane[0];
      }
    }
    sums.of[slice][lane] = sum;
  });
  block.each([&](int thread) {
    const std::int64_t column = begin + thread;
    if (thread >= kColumnsOfAdd || column >= all) return;
    float sum = 0;
    for (int slice = 0; slice < kSlices; ++slice) sum += sums.of[slice][thread];
    if (column < a.columns) {
      block.array(a.of_weight, a.columns).template put<1>(column, {from_float<Value>(sum)});
    } else if (a.of_bias) {
      block.array(a.of_bias, a.columns).template put<1>(column - a.columns, {from_float<Value>(sum)});
    }
  });
}

}  // namespace dtrain::train::cuda
