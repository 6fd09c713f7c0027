// Antialiased bilinear resizing of bytes: the method of Pillow's resample (Image.resize with BILINEAR and
// `reducing_gap` unset) and of libtorch for uint8 (_upsample_bilinear2d_aa): a triangle filter whose width grows with
// the reduction, first along rows, then along columns, with 16-bit weights, and bytes between the two.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dtrain/data/image.h"

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "images/resize.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#ifndef DTRAIN_DATA_RESIZE_TAPS
#define DTRAIN_DATA_RESIZE_TAPS
namespace dtrain::data {

// The first input position of each output position of one axis, and the weights from it on. All positions have the same
// even number of weights; two of them make an int32, the first one in its lower half.
struct Taps {
  std::vector<int> first;
  std::vector<std::int32_t> weights;
  int pairs = 0;  // pairs of weights of one position
  int precision = 0;

  const std::int32_t* of(int position) const { return weights.data() + static_cast<std::size_t>(position * pairs); }
};

}  // namespace dtrain::data
#endif  // DTRAIN_DATA_RESIZE_TAPS

HWY_BEFORE_NAMESPACE();
namespace dtrain::data {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // processors without SSSE3 compute the same sums one by one

inline std::int32_t weight_of(const std::int32_t* weights, int tap) {
  const auto pair = static_cast<std::uint32_t>(weights[tap / 2]);
  return static_cast<std::int16_t>(tap % 2 == 0 ? pair & 0xffff : pair >> 16);
}

// `step`: bytes from one weighted value to the next.
inline std::uint8_t weighted(const std::uint8_t* in, std::size_t step, const std::int32_t* weights, const Taps& taps) {
  std::int32_t sum = 1 << (taps.precision - 1);
  for (int tap = 0; tap < 2 * taps.pairs; ++tap, in += step) {
    if (const std::int32_t weight = weight_of(weights, tap)) sum += weight * *in;
  }
  return static_cast<std::uint8_t>(std::clamp(sum >> taps.precision, 0, 255));
}

void resize_rows(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out, std::size_t out_stride, int width,
                 int rows, const Taps& taps) {
  for (int y = 0; y < rows; ++y, in += in_stride, out += out_stride) {
    for (int i = 0; i < width * Image::kBytes; ++i) {
      const int x = i / Image::kBytes, channel = i % Image::kBytes;
      const auto first = static_cast<std::size_t>(taps.first[static_cast<std::size_t>(x)]) * Image::kBytes;
      out[i] = weighted(in + first + channel, Image::kBytes, taps.of(x), taps);
    }
  }
}

void resize_columns(const std::uint8_t* in, std::size_t stride, std::uint8_t* out, std::size_t bytes, int y,
                    const Taps& taps) {
  const std::uint8_t* from = in + static_cast<std::size_t>(taps.first[static_cast<std::size_t>(y)]) * stride;
  for (std::size_t i = 0; i < bytes; ++i) out[i] = weighted(from + i, stride, taps.of(y), taps);
}

#else

// Adds the sum of an adjacent pair of products to each lane. The products in `even` and `odd` differ between processors
// until they are combined, so `sum` is added afterwards.
template <class D32, class V16, class V32 = hn::Vec<D32> >
HWY_INLINE V32 add_products(D32 d32, V16 pixels, V16 weights, V32 sum) {
  V32 odd = hn::Zero(d32);
  const V32 even = hn::ReorderWidenMulAccumulate(d32, pixels, weights, hn::Zero(d32), odd);
  return hn::Add(sum, hn::RearrangeToOddPlusEven(even, odd));
}

// Vectors of 32 bytes take two rows, others take one.
using Bytes = hn::CappedTag<std::uint8_t, 32>;
constexpr int kRowsInVector = hn::MaxLanes(Bytes()) / 16;

// Loads four pixels of each row.
template <class D8>
HWY_INLINE hn::Vec<D8> load_pixels(D8 d8, const std::uint8_t* from, std::size_t stride) {
  if constexpr (hn::MaxLanes(D8()) == 32) {
    const hn::Half<D8> half;
    return hn::Combine(d8, hn::LoadU(half, from + stride), hn::LoadU(half, from));
  } else {
    return hn::LoadU(d8, from);
  }
}

constexpr int kRowsTogether = 2 * kRowsInVector;
using Pixels = hn::Half<Bytes>;  // one pixel of each of kRowsTogether rows

// The row of each lane of Pixels, from the first lane on.
constexpr int row_of_lane(int lane) {
  return lane / 2 + (lane % 2) * kRowsInVector;
}

// `kPairs`: pairs of weights of a position, known to the compiler; 0: any number.
template <int kPairs>
class RowFilter {
 public:
  RowFilter(const Taps& taps, const std::uint8_t* in, std::size_t stride)
      : in_(in),
        stride_(stride),
        first_(taps.first.data()),
        weights_(taps.of(0)),
        pairs_(kPairs > 0 ? kPairs : taps.pairs),
        precision_(taps.precision) {}

  // Returns the weighted mean of pixels of each row for output position `x`.
  HWY_INLINE hn::Vec<Pixels> mean(int x) const {
    const hn::Repartition<std::int16_t, Bytes> d16;
    const hn::Repartition<std::int32_t, Bytes> d32;
    // The bytes of a channel in two pixels (0 and 1, 2 and 3) become adjacent 16-bit numbers.
    alignas(16) static constexpr std::uint8_t kOrder[2][16] = {
        {0, 0x80, 4, 0x80, 1, 0x80, 5, 0x80, 2, 0x80, 6, 0x80, 3, 0x80, 7, 0x80},
        {8, 0x80, 12, 0x80, 9, 0x80, 13, 0x80, 10, 0x80, 14, 0x80, 11, 0x80, 15, 0x80}};
    const auto order0 = hn::LoadDup128(Bytes(), kOrder[0]), order1 = hn::LoadDup128(Bytes(), kOrder[1]);
    const std::int32_t* const weights = weights_ + static_cast<std::ptrdiff_t>(x) * pairs_;
    const std::uint8_t* from = in_ + static_cast<std::ptrdiff_t>(first_[x]) * Image::kBytes;
    auto sum0 = hn::Set(d32, 1 << (precision_ - 1)), sum1 = sum0;
    for (int p = 0; p < pairs_; p += 2, from += 4 * Image::kBytes) {
      const auto pixels0 = load_pixels(Bytes(), from, stride_),
                 pixels1 = load_pixels(Bytes(), from + stride_ * kRowsInVector, stride_);
      const auto weight0 = hn::BitCast(d16, hn::Set(d32, weights[p]));
      sum0 = add_products(d32, hn::BitCast(d16, hn::TableLookupBytesOr0(pixels0, order0)), weight0, sum0);
      sum1 = add_products(d32, hn::BitCast(d16, hn::TableLookupBytesOr0(pixels1, order0)), weight0, sum1);
      if (p + 1 == pairs_) break;
      const auto weight1 = hn::BitCast(d16, hn::Set(d32, weights[p + 1]));
      sum0 = add_products(d32, hn::BitCast(d16, hn::TableLookupBytesOr0(pixels0, order1)), weight1, sum0);
      sum1 = add_products(d32, hn::BitCast(d16, hn::TableLookupBytesOr0(pixels1, order1)), weight1, sum1);
    }
    // Each block of the result has a pixel of the first sum and one of the second.
    return hn::DemoteTo(Pixels(), hn::ReorderDemote2To(d16, hn::ShiftRightSame(sum0, precision_),
                                                       hn::ShiftRightSame(sum1, precision_)));
  }

 private:
  const std::uint8_t* const in_;
  const std::size_t stride_;
  const int* const first_;
  const std::int32_t* const weights_;
  const int pairs_;
  const int precision_;
};

HWY_INLINE void store_pixels(hn::Vec<Pixels> mean, std::uint8_t* out, std::size_t stride) {
  alignas(16) std::uint8_t pixels[hn::MaxLanes(Pixels())];
  hn::Store(mean, Pixels(), pixels);
  for (int lane = 0; lane < kRowsTogether; ++lane) {
    std::memcpy(out + static_cast<std::size_t>(row_of_lane(lane)) * stride, pixels + lane * Image::kBytes,
                Image::kBytes);
  }
}

#if HWY_MAX_BYTES >= 32
// Stores four pixels of each of four rows, with one store per row. Stores of single pixels would become scatter
// instructions, which take longer than all other work.
template <class V>
HWY_INLINE void store_tile(V mean0, V mean1, V mean2, V mean3, std::uint8_t* out, std::size_t stride) {
  const hn::Repartition<std::uint32_t, Pixels> d32;
  const hn::Repartition<std::uint64_t, Pixels> d64;
  const auto a = hn::BitCast(d32, mean0), b = hn::BitCast(d32, mean1), c = hn::BitCast(d32, mean2),
             d = hn::BitCast(d32, mean3);
  const auto low0 = hn::BitCast(d64, hn::InterleaveLower(d32, a, b)),
             low1 = hn::BitCast(d64, hn::InterleaveLower(d32, c, d)),
             high0 = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b)),
             high1 = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  const auto store = [&](auto pixels, int lane) {
    hn::StoreU(hn::BitCast(Pixels(), pixels), Pixels(), out + static_cast<std::size_t>(row_of_lane(lane)) * stride);
  };
  store(hn::InterleaveLower(d64, low0, low1), 0);
  store(hn::InterleaveUpper(d64, low0, low1), 1);
  store(hn::InterleaveLower(d64, high0, high1), 2);
  store(hn::InterleaveUpper(d64, high0, high1), 3);
}
#endif

// Resizes kRowsTogether rows.
template <int kPairs>
HWY_INLINE void resize_group(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out, std::size_t out_stride,
                             int width, const Taps& taps) {
  const RowFilter<kPairs> filter(taps, in, in_stride);
  int x = 0;
#if HWY_MAX_BYTES >= 32
  constexpr int kTile = 4;
  if (width >= kTile) {
    for (; x < width; x += kTile) {
      const int at = std::min(x, width - kTile);  // recomputes some of the last
      store_tile(filter.mean(at), filter.mean(at + 1), filter.mean(at + 2), filter.mean(at + 3),
                 out + at * Image::kBytes, out_stride);
    }
  }
#endif
  for (; x < width; ++x) store_pixels(filter.mean(x), out + x * Image::kBytes, out_stride);
}

template <int kPairs>
void resize_rows_by(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out, std::size_t out_stride, int width,
                    int rows, const Taps& taps) {
  for (int y = 0; y < rows; y += kRowsTogether) {
    const auto first = static_cast<std::size_t>(std::min(y, rows - kRowsTogether));  // recomputes some of the last
    resize_group<kPairs>(in + first * in_stride, in_stride, out + first * out_stride, out_stride, width, taps);
  }
}

// Resizes `rows` rows (at least 4) from `in`, each to `width` pixels.
void resize_rows(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out, std::size_t out_stride, int width,
                 int rows, const Taps& taps) {
  switch (taps.pairs) {
    case 1:
      return resize_rows_by<1>(in, in_stride, out, out_stride, width, rows, taps);
    case 2:
      return resize_rows_by<2>(in, in_stride, out, out_stride, width, rows, taps);
    case 3:
      return resize_rows_by<3>(in, in_stride, out, out_stride, width, rows, taps);
    default:
      return resize_rows_by<0>(in, in_stride, out, out_stride, width, rows, taps);
  }
}

// Sums the weighted bytes of the input rows of one output row.
template <class D8>
HWY_INLINE void blend(D8 d8, const std::uint8_t* in, std::size_t stride, std::uint8_t* out, const std::int32_t* weights,
                      const Taps& taps) {
  const hn::Repartition<std::int16_t, D8> d16;
  const hn::Repartition<std::int32_t, D8> d32;
  const auto zero = hn::Zero(d8);
  const auto half = hn::Set(d32, 1 << (taps.precision - 1));
  auto sum0 = half, sum1 = half, sum2 = half, sum3 = half;
  for (int p = 0; p < taps.pairs; ++p, in += 2 * stride) {
    const auto weight = hn::BitCast(d16, hn::Set(d32, weights[p]));
    const auto upper = hn::LoadU(d8, in), lower = hn::LoadU(d8, in + stride);
    // In each block of 16 bytes, bytes of both rows alternate and then become 16-bit numbers.
    const auto first = hn::InterleaveLower(d8, upper, lower), second = hn::InterleaveUpper(d8, upper, lower);
    sum0 = add_products(d32, hn::BitCast(d16, hn::InterleaveLower(d8, first, zero)), weight, sum0);
    sum1 = add_products(d32, hn::BitCast(d16, hn::InterleaveUpper(d8, first, zero)), weight, sum1);
    sum2 = add_products(d32, hn::BitCast(d16, hn::InterleaveLower(d8, second, zero)), weight, sum2);
    sum3 = add_products(d32, hn::BitCast(d16, hn::InterleaveUpper(d8, second, zero)), weight, sum3);
  }
  const auto narrow = [&](auto a, auto b) {
    return hn::ReorderDemote2To(d16, hn::ShiftRightSame(a, taps.precision), hn::ShiftRightSame(b, taps.precision));
  };
  const hn::Half<D8> half8;
  const auto low = hn::DemoteTo(half8, narrow(sum0, sum1)), high = hn::DemoteTo(half8, narrow(sum2, sum3));
  if constexpr (hn::MaxLanes(D8()) == 32) {  // each has 8 bytes of both blocks
    const hn::Repartition<std::uint64_t, decltype(half8)> d64;
    const auto low64 = hn::BitCast(d64, low), high64 = hn::BitCast(d64, high);
    hn::StoreU(hn::BitCast(half8, hn::InterleaveLower(d64, low64, high64)), half8, out);
    hn::StoreU(hn::BitCast(half8, hn::InterleaveUpper(d64, low64, high64)), half8, out + hn::MaxLanes(half8));
  } else {
    hn::StoreU(hn::Combine(d8, high, low), d8, out);
  }
}

// Computes row `y` of the result, of `bytes` bytes (at least Image::kBehind), from rows of the same length.
void resize_columns(const std::uint8_t* in, std::size_t stride, std::uint8_t* out, std::size_t bytes, int y,
                    const Taps& taps) {
  constexpr std::size_t kLanes = hn::MaxLanes(Bytes());
  const std::int32_t* weights = taps.of(y);
  const std::uint8_t* from = in + static_cast<std::size_t>(taps.first[static_cast<std::size_t>(y)]) * stride;
  std::size_t i = 0;
  for (; i + kLanes <= bytes; i += kLanes) blend(Bytes(), from + i, stride, out + i, weights, taps);
  if (i < bytes) {  // recomputes some bytes
    i = bytes - kLanes;
    blend(Bytes(), from + i, stride, out + i, weights, taps);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::data
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dtrain::data {
namespace {

HWY_EXPORT(resize_rows);
HWY_EXPORT(resize_columns);

// Input positions from `first` to `end` - 1.
struct Range {
  int first = 0, end = 0;
};

// The weights of all output positions of an axis, before they are rounded.
struct Filter {
  std::vector<int> first;       // input position of each position's first weight
  std::vector<int> count;       // number of weights of each position
  std::vector<double> weights;  // weights of all positions, one after the other
  int most = 0;                 // largest number of weights of a position
};

// Rounds numbers from -0.5 on to the nearest integer, like ATen.
int rounded(double value) {
  return static_cast<int>(value + 0.5);  // NOLINT(bugprone-incorrect-roundings): lround() rounds -0.5 to -1
}

// Computes the same as ATen's _compute_indices_min_size_weights_aa. `start`, `length`: the part of the axis to scale.
Filter triangle_filter(double start, double length, int size, const Range& inside) {
  const double scale = length / size, support = std::max(scale, 1.0);
  Filter filter;
  filter.first.reserve(static_cast<std::size_t>(size));
  filter.count.reserve(static_cast<std::size_t>(size));
  filter.weights.reserve(static_cast<std::size_t>(size * (2 * support + 2)));
  for (int i = 0; i < size; ++i) {
    const double center = start + scale * (i + 0.5);
    int first = std::max(rounded(center - support), inside.first);
    const int end = std::min(rounded(center + support), inside.end);
    const std::size_t begin = filter.weights.size();
    double total = 0;
    for (int j = first; j < end; ++j) {
      filter.weights.push_back(std::max(0.0, 1 - std::abs((j - center + 0.5) / support)));
      total += filter.weights.back();
    }
    if (total == 0) {  // a box of less than a pixel
      filter.weights.resize(begin);
      filter.weights.push_back(1);
      total = 1;
      first = std::clamp(static_cast<int>(center), inside.first, inside.end - 1);
    }
    for (std::size_t j = begin; j < filter.weights.size(); ++j) filter.weights[j] /= total;
    filter.first.push_back(first);
    filter.count.push_back(static_cast<int>(filter.weights.size() - begin));
    filter.most = std::max(filter.most, filter.count.back());
  }
  return filter;
}

Taps taps_for(double start, double length, int size, const Range& inside) {
  const Filter filter = triangle_filter(start, length, size, inside);
  const double largest = *std::max_element(filter.weights.begin(), filter.weights.end());
  Taps taps;
  taps.pairs = (filter.most + 1) / 2;
  const int width = 2 * taps.pairs;
  // The largest number of bits with which the largest weight fits into 16 bits.
  constexpr int kMostBits = 22, kLimit = 1 << 15;
  while (taps.precision < kMostBits && rounded(largest * (1 << (taps.precision + 1))) < kLimit) ++taps.precision;
  const double unit = 1 << taps.precision;
  std::vector<std::int16_t> weights(static_cast<std::size_t>(size) * static_cast<std::size_t>(width));
  taps.first.reserve(static_cast<std::size_t>(size));
  const double* weight = filter.weights.data();
  for (int i = 0; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    // Positions with fewer weights must not read past the end, so they begin earlier, with weights of 0.
    const int first = std::min(filter.first[at], std::max(inside.first, inside.end - width));
    taps.first.push_back(first);
    std::int16_t* to = weights.data() + at * static_cast<std::size_t>(width) + (filter.first[at] - first);
    for (int j = 0; j < filter.count[at]; ++j) to[j] = static_cast<std::int16_t>(rounded(*weight++ * unit));
  }
  taps.weights.resize(weights.size() / 2);
  std::memcpy(taps.weights.data(), weights.data(), weights.size() * sizeof weights.front());
  return taps;
}

Range touched(double start, double length, int size) {
  const int first = std::clamp(static_cast<int>(std::floor(start)), 0, size - 1);
  return {first, std::clamp(static_cast<int>(std::ceil(start + length)), first + 1, size)};
}

bool is_unchanged(double start, double length, int size) {
  return length == size && start == std::floor(start);
}

}  // namespace

Image resized(const Image& image, const Box& box, Size size) {
  return resized(image, box, size, box);
}

Image resized(const Image& image, const Box& box, Size size, const Box& inside) {
  constexpr int kLeastRows = 4;  // least rows for resize_rows()
  if (image.height() < kLeastRows) {
    Image higher({image.width(), kLeastRows});
    std::memset(higher.row(0), 0, higher.stride() * kLeastRows);
    std::memcpy(higher.row(0), image.row(0), image.stride() * static_cast<std::size_t>(image.height()));
    return resized(higher, box, size, inside);
  }
  const Range columns = touched(inside.x, inside.width, image.width());
  const Range rows = touched(inside.y, inside.height, image.height());
  const bool same_width = is_unchanged(box.x, box.width, size.width);
  const bool same_height = is_unchanged(box.y, box.height, size.height);
  const int left = static_cast<int>(box.x), top = static_cast<int>(box.y);
  if (same_width && same_height) return cropped(image, {left, top, size.width, size.height});

  // Rows of the final width. If the number of weights is odd, one more row is read, with weight 0.
  const int start = std::min(rows.first, image.height() - kLeastRows);
  const int height = std::max(rows.end - start, kLeastRows);
  Image between({size.width, height + 1});
  const std::uint8_t* const from = image.row(start);
  if (same_width) {
    for (int y = 0; y < height; ++y) {
      std::memcpy(between.row(y),
                  from + image.stride() * static_cast<std::size_t>(y) + static_cast<std::size_t>(left) * Image::kBytes,
                  between.stride());
    }
  } else {
    const Taps taps = taps_for(box.x, box.width, size.width, columns);
    HWY_DYNAMIC_DISPATCH(resize_rows)
    (from, image.stride(), between.row(0), between.stride(), size.width, height, taps);
  }
  if (same_height) return cropped(between, {0, top - start, size.width, size.height});
  std::memset(between.row(height), 0, between.stride());
  Image result(size);
  const Taps taps = taps_for(box.y - start, box.height, size.height, {rows.first - start, rows.end - start});
  const std::size_t bytes = std::max<std::size_t>(result.stride(), Image::kBehind);
  for (int y = 0; y < size.height; ++y) {
    HWY_DYNAMIC_DISPATCH(resize_columns)(between.row(0), between.stride(), result.row(y), bytes, y, taps);
  }
  return result;
}

}  // namespace dtrain::data

#endif  // HWY_ONCE
