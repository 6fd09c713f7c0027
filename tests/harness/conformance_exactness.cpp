// The bits of floating point results: in which order, in which precision, and always the same.
#include <bit>
#include <cmath>
#include <cstring>

#include "conformance_data.h"

namespace dtrain::test {
namespace {

using comm::Communicator;
using comm::DataType;

// Without a pattern, with many significant bits, between -2800 and 2800.
double fraction(int rank, std::size_t i, int salt) {
  auto x = static_cast<std::uint32_t>(i * 2654435761u) ^ static_cast<std::uint32_t>(rank * 7919 + salt * 104'729 + 1);
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return (static_cast<double>(x ^ x >> 16) - 2147483648.0) / 777777.0;
}

template <class T>
void expect_rank_order(Communicator& comm, DataType type) {
  constexpr std::size_t kCount = 20'011;
  Areas areas(comm, kCount * sizeof(T));
  for (const Placing placing : kAllPlacings) {
    auto* const data = reinterpret_cast<T*>(areas.in(placing));
    for (std::size_t i = 0; i < kCount; ++i) data[i] = static_cast<T>(fraction(comm.rank(), i, 1));
    comm.all_reduce(data, kCount, type, {.pre_scale = 0.3, .post_scale = 0.1}).wait();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const T factor = static_cast<T>(0.3);
      T sum = static_cast<T>(fraction(0, i, 1)) * factor;
      for (int r = 1; r < comm.world_size(); ++r) {
        const T next = static_cast<T>(fraction(r, i, 1)) * factor;
        sum += next;
      }
      wrong += data[i] != sum * static_cast<T>(0.1);
    }
    EXPECT_EQ(wrong, 0u) << name_of(type) << " " << name_of(placing);
  }
}

void rank_order(Communicator& comm) {
  expect_rank_order<float>(comm, DataType::kFloat32);
  expect_rank_order<double>(comm, DataType::kFloat64);
}

// The sum of narrow values is rounded once, and may pass what the narrow type holds on its way.
void narrow_types_are_summed_wide(Communicator& comm) {
  constexpr std::size_t kCount = 3001;
  Areas areas(comm, kCount * 2);
  const int n = comm.world_size();
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const Placing placing : kAllPlacings) {
      std::byte* const data = areas.in(placing);
      for (std::size_t i = 0; i < kCount; ++i) store_element(type, data, i, fraction(comm.rank(), i, 2));
      comm.all_reduce(data, kCount, type, {.post_scale = 0.25}).wait();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        float sum = 0;
        for (int r = 0; r < n; ++r) {
          sum += static_cast<float>(decode_narrow(type, encode_narrow(type, fraction(r, i, 2))));
        }
        wrong += load_floating(type, data, i) != decode_narrow(type, encode_narrow(type, sum * 0.25f));
      }
      EXPECT_EQ(wrong, 0u) << name_of(type) << " " << name_of(placing);
    }
  }
  std::byte* const data = areas.in(Placing::kRegistered);
  for (std::size_t i = 0; i < kCount; ++i) store_element(DataType::kFloat16, data, i, 60'000.0);
  comm.all_reduce(data, kCount, DataType::kFloat16, {.op = comm::ReduceOp::kMean}).wait();
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(load_floating(DataType::kFloat16, data, i), 60'000.0);
}

std::uint64_t hash_of(const std::byte* data, std::size_t bytes) {
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<std::uint64_t>(data[i])) * 1099511628211u;
  return hash;
}

// On every rank, and when it is done again, and done in parts.
void the_same_bits(Communicator& comm) {
  constexpr std::size_t kCount = 40'003;
  Areas areas(comm, kCount * 4);
  const auto n = static_cast<std::size_t>(comm.world_size());
  std::vector<std::uint64_t> first;
  for (int round = 0; round < 4; ++round) {
    std::byte* const data = areas.in(round % 2 ? Placing::kPlain : Placing::kRegistered);
    for (std::size_t i = 0; i < kCount; ++i) store_element(DataType::kFloat32, data, i, fraction(comm.rank(), i, 3));
    if (round < 2) {
      comm.all_reduce(data, kCount, DataType::kFloat32).wait();
    } else {
      comm.reduce_parts(data, kCount, DataType::kFloat32).wait();
      comm.gather_parts(data, kCount, DataType::kFloat32).wait();
    }
    const auto hash = static_cast<std::int64_t>(hash_of(data, kCount * 4));
    std::vector<std::uint64_t> all(n);
    comm.all_gather(&hash, all.data(), 1, DataType::kInt64).wait();
    if (first.empty()) first.assign(n, all[0]);
    EXPECT_EQ(all, first) << "round " << round;
  }
}

// Whether element i of this rank is NaN: of every n + 2 elements each rank has one alone, all ranks have one, and one
// is a number everywhere.
bool has_nan(const Communicator& comm, std::size_t i, int rank) {
  const auto n = static_cast<std::size_t>(comm.world_size());
  const std::size_t pattern = i % (n + 2);
  return pattern == n || pattern == static_cast<std::size_t>(rank);
}

void expect_rank_zeros_bits(Communicator& comm, const std::byte* data, std::size_t bytes, const std::string& what) {
  std::vector<std::byte> theirs(data, data + bytes);
  comm.broadcast(theirs.data(), bytes, DataType::kUint8, 0).wait();
  EXPECT_EQ(std::memcmp(theirs.data(), data, bytes), 0) << what << ": rank 0 has other bits";
}

void nan_in_minimum_and_maximum(const ConformanceTraits& traits, Communicator& comm) {
  constexpr std::size_t kMost = 4099;
  Areas areas(comm, kMost * 8);
  const int n = comm.world_size();
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const comm::ReduceOp op : {comm::ReduceOp::kMin, comm::ReduceOp::kMax}) {
      const auto wanted = reduced_values(type, op, n, kMost, 6);
      for (const Placing placing : kAllPlacings) {
        for (const std::size_t count : {std::size_t{9}, kMost}) {
          for (const double scale : {1.0, 0.5}) {
            if (scale != 1.0 && !traits.exact_scaling) continue;
            std::byte* const data = areas.in(placing);
            fill_small(type, data, count, comm.rank(), 6);
            for (std::size_t i = 0; i < count; ++i) {
              if (has_nan(comm, i, comm.rank())) store_element(type, data, i, std::nan(""));
            }
            comm.all_reduce(data, count, type, {.op = op, .pre_scale = scale}).wait();
            const std::string what = std::string(name_of(op)) + " " + std::string(name_of(type)) + " x" +
                                     std::to_string(count) + " " + name_of(placing) + " scaled by " +
                                     std::to_string(scale);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < count; ++i) {
              int nans = 0;
              for (int r = 0; r < n; ++r) nans += has_nan(comm, i, r) ? 1 : 0;
              const double got = load_floating(type, data, i);
              if (nans == 0) {
                wrong += got != wanted[i] * scale;
              } else if (nans == n || traits.nan_wins) {
                wrong += !std::isnan(got);
              }
            }
            EXPECT_EQ(wrong, 0u) << what;
            expect_rank_zeros_bits(comm, data, count * size_of(type), what);
          }
        }
      }
    }
  }
}

}  // namespace

std::vector<ConformanceCase> exactness_cases(const ConformanceTraits& traits) {
  std::vector<ConformanceCase> cases{
      {"TheSameBits", the_same_bits},
      {"NanInMinimumAndMaximum", [traits](Communicator& comm) { nan_in_minimum_and_maximum(traits, comm); }}};
  if (traits.rank_order) cases.push_back({"RankOrder", rank_order});
  if (traits.wide_sums && traits.rank_order)
    cases.push_back({"NarrowTypesAreSummedWide", narrow_types_are_summed_wide});
  return cases;
}

}  // namespace dtrain::test
