// Reductions: every type and operation, in and out of place, wherever the memory comes from.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string>

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
  if (type == DataType::kInt8 && (op == ReduceOp::kSum || op == ReduceOp::kBitXor)) return {0, 1, 65, 300'007};
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

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

bool is_tried(const ConformanceTraits& traits, DataType type, ReduceOp op) {
  return traits.every_reduction ? is_reduction(type, op) : is_nccl_reduction(type, op);
}

// `check(Try)` for all of at most `limit` bytes; `prepare(type, op, largest count)` before those of one type and
// operation.
template <class Prepare, class Check>
void for_each_reduction(const ConformanceTraits& traits, std::size_t limit, const Prepare& prepare,
                        const Check& check) {
  for (const DataType type : kAllTypes) {
    for (const ReduceOp op : kAllOps) {
      if (!is_tried(traits, type, op)) continue;
      const auto sizes = sizes_of(type, op);
      const std::size_t most = limit / size_of(type);
      prepare(type, op, std::min(most, sizes.back()));
      for (const std::size_t count : sizes) {
        if (count > most) continue;
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
  for_each_reduction(traits, kLargest * 8, prepare, [&](const Try& t) {
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
  for_each_reduction(traits, kMost * 8, prepare, [&](const Try& t) {
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
void parts(const ConformanceTraits& traits, Communicator& comm) {
  constexpr std::size_t kMost = 300'007;
  Areas areas(comm, kMost * 8);
  for (const DataType type : kAllTypes) {
    if (!is_tried(traits, type, ReduceOp::kSum)) continue;
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

// The root alone gets the result, whichever rank it is and wherever its memory is. The others' `out` is untouched.
void reduce(const ConformanceTraits& traits, Communicator& comm) {
  constexpr std::size_t kMost = 300'007;
  Areas areas(comm, kMost * 4);
  std::vector<double> wanted, own;
  std::vector<std::byte> input;
  int root = 0;
  const auto prepare = [&](DataType type, ReduceOp op, std::size_t largest) {
    own = small_values(comm.rank(), largest, 7);
    wanted = reduced_values(type, op, comm.world_size(), largest, 7);
    input.resize(largest * size_of(type));
    fill_small(type, input.data(), largest, comm.rank(), 7);
  };
  for_each_reduction(traits, kMost * 4, prepare, [&](const Try& t) {
    root = (root + 1) % comm.world_size();
    const bool is_root = comm.rank() == root;
    const std::size_t bytes = t.count * size_of(t.type);
    std::byte* const in = areas.in(t.placing);
    std::byte* const out = areas.out(t.placing);
    const std::span want(wanted.data(), t.count);
    const std::span before(own.data(), t.count);
    std::memcpy(in, input.data(), bytes);
    std::memset(out, 0x55, bytes);
    comm.reduce(in, out, t.count, t.type, root, {.op = t.op}).wait();
    EXPECT_EQ(first_wrong(t.type, in, before), "") << title("input of reduce", t.type, t.op, t.count, t.placing);
    if (is_root) {
      EXPECT_EQ(first_wrong(t.type, out, want, magnitude_of(traits, comm, t)), "")
          << title("reduced", t.type, t.op, t.count, t.placing);
    } else {
      EXPECT_EQ(std::count(out, out + bytes, std::byte{0x55}), static_cast<std::ptrdiff_t>(bytes))
          << title("not the root's", t.type, t.op, t.count, t.placing);
    }
    comm.reduce(in, is_root ? in : nullptr, t.count, t.type, root, {.op = t.op}).wait();
    EXPECT_EQ(first_wrong(t.type, in, is_root ? want : before, is_root ? magnitude_of(traits, comm, t) : 0), "")
        << title("reduced in place", t.type, t.op, t.count, t.placing);
  });
}

// From Buffers to a root's other memory and back, several at once, with the bits of an all_reduce.
void reduce_with_scales(const ConformanceTraits& traits, Communicator& comm) {
  constexpr std::size_t kCount = 150'007;
  Areas areas(comm, kCount * 4);
  std::vector<std::byte> all(kCount * 4);
  for (const DataType type : {DataType::kFloat32, DataType::kBfloat16}) {
    for (const ReduceOptions& options :
         {ReduceOptions{.pre_scale = 0.3, .post_scale = 0.1}, ReduceOptions{.op = ReduceOp::kMean}}) {
      for (const auto& [from, to] :
           {std::pair(Placing::kRegistered, Placing::kPlain), std::pair(Placing::kPlain, Placing::kRegistered),
            std::pair(Placing::kMixed, Placing::kRegistered), std::pair(Placing::kRegistered, Placing::kMixed)}) {
        std::byte* const in = areas.in(from);
        std::byte* const out = areas.out(to);
        for (std::size_t i = 0; i < kCount; ++i) {
          store_element(type, in, i, std::sin(static_cast<double>(i + 1) * (1.5 + comm.rank())) * 1000);
        }
        comm.all_reduce(in, all.data(), kCount, type, options).wait();
        std::vector<Work> works;
        for (int root = 0; root < comm.world_size(); ++root) {
          works.push_back(comm.reduce(in, out, kCount, type, root, options));
        }
        for (Work& work : works) work.wait();
        EXPECT_EQ(works.back().bytes(), kCount * size_of(type));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < kCount; ++i) {
          const double want = load_floating(type, all.data(), i);
          const double have = load_floating(type, out, i);
          wrong += traits.rank_order ? have != want : std::fabs(have - want) > 0.02 * comm.world_size() * 1000;
        }
        EXPECT_EQ(wrong, 0u) << name_of(type) << " " << name_of(from) << " to " << name_of(to);
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

void refused(const ConformanceTraits& traits, Communicator& comm) {
  std::byte data[64] = {};
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt32, {.op = ReduceOp::kMean}), CommError);
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt64, {.post_scale = 0.5}), CommError);
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kUint8, {.pre_scale = 2.0}), CommError);
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kBool, {.op = ReduceOp::kMean}), CommError);
  EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt16, {.pre_scale = 2.0}), CommError);
  for (const ReduceOp op : kAllOps) {
    if (!is_bitwise(op)) continue;
    const std::string what = "all_reduce(" + std::string(name_of(op)) + ", float16, 4 elements): bitwise operations";
    EXPECT_EQ(error_of([&] { comm.all_reduce(data, 4, DataType::kFloat16, {.op = op}); }).substr(0, what.size()), what);
    if (traits.every_reduction) continue;
    EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt32, {.op = op}), CommError);
    EXPECT_THROW(comm.all_reduce(data, 4, DataType::kInt16), CommError);
  }
  EXPECT_THROW(comm.reduce(data, data, 4, DataType::kInt32, comm.world_size()), CommError);
  EXPECT_THROW(comm.reduce(data, data, 4, DataType::kInt32, -1), CommError);
  EXPECT_THROW(comm.reduce(nullptr, data, 4, DataType::kInt32, 0), CommError);
  EXPECT_THROW(comm.reduce(data, nullptr, 4, DataType::kInt32, comm.rank()), CommError);
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
          {"Parts", with(parts)},
          {"Reduce", with(reduce)},
          {"ReduceWithScales", with(reduce_with_scales)},
          {"Scaling", with(scaling)},
          {"Refused", with(refused)}};
}

}  // namespace dtrain::test
