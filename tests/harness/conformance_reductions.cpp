// Reductions: every type and operation, in and out of place, wherever the memory comes from.
#include <algorithm>
#include <cstring>
#include <span>

#include "conformance_data.h"
#include "dtrain/base/error.h"

namespace dtrain::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::is_floating;
using comm::Part;
using comm::ReduceOp;
using comm::ReduceOptions;
using comm::size_of;
using comm::Work;

constexpr std::size_t kLargest = 70'001;

std::string title(const char* what, DataType type, ReduceOp op, std::size_t count, Placing placing) {
  return std::string(what) + " " + std::string(name_of(op)) + " " + std::string(name_of(type)) + " x" +
         std::to_string(count) + " " + name_of(placing);
}

std::vector<std::size_t> sizes_of(DataType type, ReduceOp op) {
  if (op != ReduceOp::kSum) return {3, 65, 1031};
  if (type == DataType::kFloat32 || type == DataType::kBfloat16)
    return {0, 1, 3, 4, 5, 17, 64, 65, 256, 257, 1000, 4099, kLargest};
  return {0, 1, 65, 4099};
}

struct Try {
  DataType type;
  ReduceOp op;
  std::size_t count;
  Placing placing;
};

// `check(Try)` for all of them; `prepare(type, op, largest count)` before those of one type and operation.
template <class Prepare, class Check>
void for_each_reduction(std::size_t limit, const Prepare& prepare, const Check& check) {
  for (const DataType type : kAllTypes) {
    for (const ReduceOp op : kAllOps) {
      if (op == ReduceOp::kMean && !is_floating(type)) continue;
      const auto sizes = sizes_of(type, op);
      prepare(type, op, std::min(limit, sizes.back()));
      for (const std::size_t count : sizes) {
        if (count > limit) continue;
        for (const Placing placing : kAllPlacings) check(Try{type, op, count, placing});
      }
    }
  }
}

// What a mean's inputs add up to, where the backend rounds each of them.
double magnitude_of(const ConformanceTraits& traits, const Communicator& comm, const Try& t) {
  return traits.exact_scaling || t.op != ReduceOp::kMean ? 0 : 6.0 * comm.world_size();
}

void all_reduce(const ConformanceTraits& traits, Communicator& comm) {
  Areas areas(comm, kLargest * 8);
  std::vector<double> wanted, own;
  std::vector<std::byte> input;
  const auto prepare = [&](DataType type, ReduceOp op, std::size_t largest) {
    own = small_values(comm.rank(), largest, 1);
    wanted = reduced_values(type, op, comm.world_size(), largest, 1);
    input.resize(largest * size_of(type));
    fill_small(type, input.data(), largest, comm.rank(), 1);
  };
  for_each_reduction(kLargest, prepare, [&](const Try& t) {
    std::byte* const in = areas.in(t.placing);
    std::byte* const out = areas.out(t.placing);
    const std::span want(wanted.data(), t.count);
    std::memcpy(in, input.data(), t.count * size_of(t.type));
    std::memset(out, 0x55, t.count * size_of(t.type));
    comm.all_reduce(in, out, t.count, t.type, {.op = t.op}).wait();
    EXPECT_EQ(first_wrong(t.type, out, want, magnitude_of(traits, comm, t)), "")
        << title("out of place", t.type, t.op, t.count, t.placing);
    EXPECT_EQ(first_wrong(t.type, in, {own.data(), t.count}), "")
        << title("input of", t.type, t.op, t.count, t.placing);
    comm.all_reduce(in, t.count, t.type, {.op = t.op}).wait();
    EXPECT_EQ(first_wrong(t.type, in, want, magnitude_of(traits, comm, t)), "")
        << title("in place", t.type, t.op, t.count, t.placing);
  });
}

// In a Buffer on one side only.
void all_reduce_between_memories(Communicator& comm) {
  constexpr std::size_t kCount = 150'007;
  Areas areas(comm, kCount * 4);
  const auto wanted = reduced_values(DataType::kFloat32, ReduceOp::kSum, comm.world_size(), kCount, 2);
  for (const auto& [from, to] :
       {std::pair(Placing::kRegistered, Placing::kPlain), std::pair(Placing::kPlain, Placing::kRegistered),
        std::pair(Placing::kMixed, Placing::kRegistered), std::pair(Placing::kRegistered, Placing::kMixed)}) {
    std::byte* const in = areas.in(from);
    std::byte* const out = areas.out(to);
    fill_small(DataType::kFloat32, in, kCount, comm.rank(), 2);
    comm.all_reduce(in, out, kCount, DataType::kFloat32).wait();
    EXPECT_EQ(first_wrong(DataType::kFloat32, out, wanted), "") << name_of(from) << " to " << name_of(to);
  }
}

void reduce_scatter(const ConformanceTraits& traits, Communicator& comm) {
  constexpr std::size_t kMost = 5000;
  const auto n = static_cast<std::size_t>(comm.world_size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  Areas areas(comm, n * kMost * 8);
  std::vector<double> wanted, own;
  std::vector<std::byte> input;
  const auto prepare = [&](DataType type, ReduceOp op, std::size_t largest) {
    own = small_values(comm.rank(), n * largest, 3);
    wanted = reduced_values(type, op, comm.world_size(), n * largest, 3);
    input.resize(n * largest * size_of(type));
    fill_small(type, input.data(), n * largest, comm.rank(), 3);
  };
  for_each_reduction(kMost, prepare, [&](const Try& t) {
    const std::size_t size = size_of(t.type);
    std::byte* const in = areas.in(t.placing);
    std::byte* const out = areas.out(t.placing);
    const std::span want(wanted.data() + rank * t.count, t.count);
    std::memcpy(in, input.data(), n * t.count * size);
    comm.reduce_scatter(in, out, t.count, t.type, {.op = t.op}).wait();
    EXPECT_EQ(first_wrong(t.type, out, want, magnitude_of(traits, comm, t)), "")
        << title("scattered", t.type, t.op, t.count, t.placing);
    EXPECT_EQ(first_wrong(t.type, in, {own.data(), n * t.count}), "")
        << title("input of scattered", t.type, t.op, t.count, t.placing);
    std::byte* const place = in + rank * t.count * size;
    comm.reduce_scatter(in, place, t.count, t.type, {.op = t.op}).wait();
    EXPECT_EQ(first_wrong(t.type, place, want, magnitude_of(traits, comm, t)), "")
        << title("scattered in place", t.type, t.op, t.count, t.placing);
  });
}

// One after the other is an all_reduce, of any number of elements.
void parts(Communicator& comm) {
  constexpr std::size_t kMost = 300'007;
  Areas areas(comm, kMost * 8);
  for (const DataType type : kAllTypes) {
    const std::size_t most = type == DataType::kFloat32 ? kMost : 4099;
    const auto wanted = reduced_values(type, ReduceOp::kSum, comm.world_size(), most, 4);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{65}, std::size_t{1001}, most}) {
      for (const Placing placing : kAllPlacings) {
        std::byte* const data = areas.in(placing);
        fill_small(type, data, count, comm.rank(), 4);
        comm.reduce_parts(data, count, type).wait();
        const Part own = comm::part_of(count, type, comm.rank(), comm.world_size());
        EXPECT_EQ(first_wrong(type, data + own.begin * size_of(type), {wanted.data() + own.begin, own.size()}), "")
            << title("own part", type, ReduceOp::kSum, count, placing);
        comm.gather_parts(data, count, type).wait();
        EXPECT_EQ(first_wrong(type, data, {wanted.data(), count}), "")
            << title("gathered parts", type, ReduceOp::kSum, count, placing);
      }
    }
  }
}

// By powers of two, so that results are exact; at last not.
void scaling(const ConformanceTraits& traits, Communicator& comm) {
  struct Scale {
    ReduceOptions options;
    ReduceOp like;  // the result is this reduction's, times `factor`
    double factor;
  };
  const double n = comm.world_size();
  const Scale scales[] = {{{.pre_scale = 4.0, .post_scale = 0.125}, ReduceOp::kSum, 0.5},
                          {{.op = ReduceOp::kMax, .pre_scale = -2.0}, ReduceOp::kMin, -2.0},
                          {{.op = ReduceOp::kMean, .post_scale = 0.7310585 * n}, ReduceOp::kSum, 0.7310585}};
  constexpr std::size_t kMost = 4999;
  Areas areas(comm, kMost * 8);
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const Scale& scale : scales) {
      auto wanted = reduced_values(type, scale.like, comm.world_size(), kMost, 5);
      for (double& value : wanted) value *= scale.factor;
      for (const Placing placing : kAllPlacings) {
        for (const std::size_t count : {std::size_t{5}, kMost}) {
          std::byte* const data = areas.in(placing);
          fill_small(type, data, count, comm.rank(), 5);
          if (!traits.exact_scaling && scale.options.op == ReduceOp::kMax) {
            EXPECT_THROW(comm.all_reduce(data, count, type, scale.options), CommError);
            continue;
          }
          comm.all_reduce(data, count, type, scale.options).wait();
          EXPECT_EQ(first_wrong(type, data, {wanted.data(), count}, traits.exact_scaling ? 0 : 6.0 * n), "")
              << title("scaled", type, scale.options.op, count, placing);
        }
      }
    }
  }
}

void refused(Communicator& comm) {
  std::byte data[64] = {};
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt32, {.op = ReduceOp::kMean}), CommError);
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt64, {.post_scale = 0.5}), CommError);
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kUint8, {.pre_scale = 2.0}), CommError);
  EXPECT_THROW(comm.all_reduce(nullptr, 4, DataType::kFloat32), CommError);
  EXPECT_THROW(comm.reduce_scatter(data, nullptr, 1, DataType::kFloat32), CommError);
  EXPECT_THROW(comm.broadcast(data, 1, DataType::kFloat32, comm.world_size()), CommError);
  EXPECT_THROW(comm.broadcast(data, 1, DataType::kFloat32, -1), CommError);
  comm.barrier().wait();  // and all of them go on
}

}  // namespace

std::vector<ConformanceCase> reduction_cases(const ConformanceTraits& traits) {
  const auto with = [&](void (*fn)(const ConformanceTraits&, Communicator&)) {
    return [traits, fn](Communicator& comm) { fn(traits, comm); };
  };
  return {{"AllReduce", with(all_reduce)},
          {"AllReduceBetweenMemories", all_reduce_between_memories},
          {"ReduceScatter", with(reduce_scatter)},
          {"Parts", parts},
          {"Scaling", with(scaling)},
          {"Refused", refused}};
}

}  // namespace dtrain::test
