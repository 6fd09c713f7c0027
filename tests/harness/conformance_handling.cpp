// Handles: many in flight, any order of waiting, groups, dropped ones, times.
#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>

#include "conformance_data.h"
#include "dtrain/base/error.h"

namespace dtrain::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::Group;
using comm::ReduceOp;
using comm::Work;

constexpr std::size_t kCount = 3000;

// More operations than any queue is deep, of all kinds, waited for in a different order on every rank.
void many_in_flight(Communicator& comm) {
  constexpr int kOperations = 300;
  const auto n = static_cast<std::size_t>(comm.world_size());
  const auto buffer = comm.allocate(kOperations * kCount * sizeof(float));
  const auto data = [&](int i) {
    return buffer->bytes().data() + static_cast<std::size_t>(i) * kCount * sizeof(float);
  };
  std::vector<std::int64_t> headers(kOperations);
  std::vector<Work> works;
  for (int i = 0; i < kOperations; ++i) {
    fill_small(DataType::kFloat32, data(i), kCount, comm.rank(), i);
    headers[static_cast<std::size_t>(i)] = comm.rank() + i;
    if (i % 3 == 2) {
      works.push_back(comm.broadcast(data(i), kCount, DataType::kFloat32, i % comm.world_size()));
    } else {
      works.push_back(comm.all_reduce(data(i), kCount, DataType::kFloat32, {.bucket = i}));
    }
    works.push_back(comm.all_reduce(&headers[static_cast<std::size_t>(i)], 1, DataType::kInt64));
    comm.progress();
  }
  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  std::vector<Work> order = works;
  std::shuffle(order.begin(), order.end(), random);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % 2) {
      order[i].wait();
    } else {
      while (!order[i].test()) std::this_thread::yield();
    }
  }
  for (int i = 0; i < kOperations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(headers[at], static_cast<std::int64_t>(n * (n - 1) / 2 + n * at));
    const auto wanted = i % 3 == 2 ? small_values(i % comm.world_size(), kCount, i)
                                   : reduced_values(DataType::kFloat32, ReduceOp::kSum, comm.world_size(), kCount, i);
    EXPECT_EQ(first_wrong(DataType::kFloat32, data(i), wanted), "") << "operation " << i;
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    const comm::WorkTiming t = works[i].timing();
    EXPECT_LE(t.enqueued, t.started);
    EXPECT_LE(t.started, t.ended);
    EXPECT_GE(t.exposed.count(), 0);
    if (i == 0) continue;
    EXPECT_LE(works[i - 1].timing().ended, t.ended) << "operations complete in the order of issue";
    EXPECT_EQ(works[i].sequence(), works[i - 1].sequence() + 1);
  }
  EXPECT_EQ(works[0].bytes(), kCount * sizeof(float));
}

void groups(Communicator& comm) {
  const auto wanted = reduced_values(DataType::kFloat32, ReduceOp::kSum, comm.world_size(), kCount, 8);
  for (const int operations : {0, 1, 5, 200}) {
    std::vector<std::vector<float>> data(static_cast<std::size_t>(operations));
    std::vector<Work> works;
    {
      Group group(comm);
      for (std::size_t i = 0; i < data.size(); ++i) {
        data[i].resize(i % 2 ? 10 : kCount);
        fill_small(DataType::kFloat32, reinterpret_cast<std::byte*>(data[i].data()), data[i].size(), comm.rank(), 8);
        works.push_back(comm.all_reduce(data[i].data(), data[i].size(), DataType::kFloat32));
        comm.progress();
      }
      if (operations == 5) {
        EXPECT_THROW(works.back().wait(), CommError) << "in an open group";
        EXPECT_THROW(comm.begin_group(), CommError) << "groups do not nest";
      }
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (const auto& one : data) {
      EXPECT_EQ(
          first_wrong(DataType::kFloat32, reinterpret_cast<const std::byte*>(one.data()), {wanted.data(), one.size()}),
          "");
    }
  }
  EXPECT_THROW(comm.end_group(), CommError) << "none is open";
  comm.barrier().wait();
}

void dropped_handles(Communicator& comm) {
  std::vector<float> data(10'000, 1.0f);
  (void)comm.all_reduce(data.data(), data.size(), DataType::kFloat32);  // goes on without its handle
  comm.barrier().wait();
  EXPECT_EQ(data[9'999], static_cast<float>(comm.world_size()));
}

// Nothing but small ones, far more than a queue is deep, by ranks that are not in step.
void many_small_in_flight(Communicator& comm) {
  constexpr std::size_t kOperations = 1000;
  std::vector<std::array<std::int64_t, 5>> data(kOperations);
  std::vector<Work> works;
  for (std::size_t i = 0; i < kOperations; ++i) {
    if (i % 250 == 249 && comm.rank() == static_cast<int>(i / 250) % comm.world_size()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    data[i].fill(comm.rank() + static_cast<std::int64_t>(i));
    works.push_back(comm.all_reduce(data[i].data(), data[i].size(), DataType::kInt64));
  }
  works.back().wait();
  const auto n = static_cast<std::int64_t>(comm.world_size());
  for (std::size_t i = 0; i < kOperations; ++i) {
    EXPECT_TRUE(works[i].test()) << "operations complete in the order of issue";
    for (const std::int64_t x : data[i]) EXPECT_EQ(x, n * (n - 1) / 2 + n * static_cast<std::int64_t>(i));
  }
}

// A handle tells of its own operation, however many come after it.
void kept_handles(Communicator& comm) {
  std::int32_t one = 1;
  std::vector<std::int32_t> two(2, 1);
  Work first = comm.all_reduce(&one, 1, DataType::kInt32);
  first.wait();
  const auto sequence = first.sequence();
  const auto ended = first.timing().ended;
  for (int i = 0; i < 3; ++i) comm.all_reduce(two.data(), 2, DataType::kInt32).wait();
  Work second = comm.all_reduce(two.data(), 2, DataType::kInt32);
  second.wait();
  EXPECT_EQ(first.sequence(), sequence);
  EXPECT_EQ(first.timing().ended, ended);
  EXPECT_EQ(first.bytes(), sizeof one);
  EXPECT_EQ(second.sequence(), sequence + 4);
  EXPECT_EQ(second.bytes(), 2 * sizeof one);
  EXPECT_TRUE(first.test());
}

// Once an operation is complete on a rank, no peer reads that rank's memory any more: it may go back to the kernel.
// Then it is zero, and can be used again.
void released_memory(Communicator& comm) {
  constexpr std::size_t kElements = 30'011;
  const auto buffer = comm.allocate(kElements * sizeof(float));
  auto* const data = reinterpret_cast<float*>(buffer->bytes().data());
  const auto value = [](std::size_t i, std::size_t round) { return static_cast<float>(1 + (i + round) % 7); };
  const auto ranks = static_cast<float>(comm.world_size());
  const comm::Part own = comm::part_of(kElements, DataType::kFloat32, comm.rank(), comm.world_size());
  for (std::size_t round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < kElements; ++i) data[i] = value(i, round) * static_cast<float>(comm.rank() + 1);
    comm.reduce_parts(data, kElements, DataType::kFloat32).wait();
    const std::size_t released = buffer->release(0, own.begin * sizeof(float)) +
                                 buffer->release(own.end * sizeof(float), (kElements - own.end) * sizeof(float));
    std::size_t zeros = 0;
    int wrong = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      if (i < own.begin || i >= own.end) {
        zeros += data[i] == 0;
      } else {
        wrong += data[i] != value(i, round) * ranks * (ranks + 1) / 2;
      }
    }
    EXPECT_EQ(wrong, 0) << "in round " << round;
    EXPECT_EQ(zeros * sizeof(float), released);
    if (comm.backend() == "thread" || comm.backend() == "mpi") {
      // Of each of the two stretches at most two pages are not whole.
      constexpr std::size_t kPages = 4 * 4096;
      EXPECT_GE(released + kPages, (kElements - own.size()) * sizeof(float));
    }
  }
}

}  // namespace

std::vector<ConformanceCase> handling_cases() {
  return {{"ManyInFlight", many_in_flight},
          {"ManySmallInFlight", many_small_in_flight},
          {"Groups", groups},
          {"DroppedHandles", dropped_handles},
          {"KeptHandles", kept_handles},
          {"ReleasedMemory", released_memory}};
}

std::vector<ConformanceCase> conformance_cases(const ConformanceTraits& traits) {
  std::vector<ConformanceCase> all;
  for (const auto& part : {reduction_cases(traits), exactness_cases(traits), movement_cases(), handling_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace dtrain::test
