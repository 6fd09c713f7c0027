// What every backend must do alike. Ranks are threads here (also of the shm backend, whose ranks then map the memory
// several times); the process case at the end runs the same mix across processes.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "dtrain/base/error.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;

struct Case {
  std::string backend;
  int ranks;
};

class Conformance : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(Communicator&)>& fn) {
    test::run_communicator_ranks(TestWorld(GetParam().ranks), GetParam().backend, fn);
  }
};

template <class T>
T value(int rank, std::size_t i, int salt = 0) {
  const auto h = static_cast<std::uint32_t>((i * 2654435761u) ^ static_cast<unsigned>(rank * 97 + salt * 31 + 1));
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(static_cast<int>(h % 20001) - 10000) / T(777);
  return static_cast<T>(h % 100003) - T(50000);
}

template <class T>
T expected(ReduceOp op, int ranks, std::size_t i, int salt, double scale) {
  T result = value<T>(0, i, salt);
  for (int r = 1; r < ranks; ++r) {
    const T next = value<T>(r, i, salt);
    if (op == ReduceOp::kSum) result = static_cast<T>(result + next);
    if (op == ReduceOp::kMin) result = std::min(result, next);
    if (op == ReduceOp::kMax) result = std::max(result, next);
  }
  return std::is_floating_point_v<T> && scale != 1.0 ? result * static_cast<T>(scale) : result;
}

template <class T>
constexpr DataType type_of() {
  if constexpr (std::is_same_v<T, float>) return DataType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DataType::kFloat64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DataType::kInt32;
  return DataType::kInt64;
}

template <class T>
void fill(T* data, std::size_t count, int rank, int salt) {
  for (std::size_t i = 0; i < count; ++i) data[i] = value<T>(rank, i, salt);
}

// Bit-exact: the order of ranks is the order of the sum.
template <class T>
void expect_reduced(const T* data, std::size_t count, ReduceOp op, int ranks, int salt, double scale,
                    const std::string& what) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += data[i] != expected<T>(op, ranks, i, salt, scale);
  EXPECT_EQ(wrong, 0u) << what << ", " << name_of(op) << " " << name_of(type_of<T>()) << " x" << count;
}

constexpr std::size_t kSizes[] = {0, 1, 3, 17, 64, 65, 1000, 4099, 262145, 1'000'000};

template <class T>
void check_all_reduce(Communicator& comm) {
  for (const std::size_t count : kSizes) {
    if (count > 300'000 && !std::is_same_v<T, float>) continue;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      const double scale = std::is_floating_point_v<T> && op == ReduceOp::kSum ? 0.1 : 1.0;
      const auto buffer = comm.allocate(count * sizeof(T) + 64);
      T* const inside = reinterpret_cast<T*>(buffer->bytes().data()) + 3;  // not on a cache line
      fill(inside, count, comm.rank(), 1);
      std::vector<T> outside(count + 1);
      fill(outside.data(), count, comm.rank(), 2);
      // Registered on even ranks only: the others take the staging area, and all must agree on how.
      std::vector<T> mixed_outside(count + 1);
      Work a = comm.all_reduce(inside, count, type_of<T>(), {.op = op, .post_scale = scale, .bucket = 0});
      Work b = comm.all_reduce(outside.data(), count, type_of<T>(), {.op = op, .post_scale = scale, .bucket = 1});
      b.wait();
      a.wait();
      expect_reduced(inside, count, op, comm.world_size(), 1, scale, "in a Buffer");
      expect_reduced(outside.data(), count, op, comm.world_size(), 2, scale, "staged");
      T* const mixed = comm.rank() % 2 == 0 ? inside : mixed_outside.data();
      fill(mixed, count, comm.rank(), 3);
      comm.all_reduce(mixed, count, type_of<T>(), {.op = op, .post_scale = scale}).wait();
      expect_reduced(mixed, count, op, comm.world_size(), 3, scale, "mixed");
    }
  }
}

TEST_P(Conformance, AllReduceFloat32) {
  run(check_all_reduce<float>);
}
TEST_P(Conformance, AllReduceFloat64) {
  run(check_all_reduce<double>);
}
TEST_P(Conformance, AllReduceInt32) {
  run(check_all_reduce<std::int32_t>);
}
TEST_P(Conformance, AllReduceInt64) {
  run(check_all_reduce<std::int64_t>);
}

TEST_P(Conformance, AllReduceUint8MinMax) {
  run([](Communicator& comm) {
    for (const std::size_t count : {1u, 300u, 5001u}) {
      std::vector<std::uint8_t> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = static_cast<std::uint8_t>(i * 7 + static_cast<unsigned>(comm.rank()) * 50);
      std::vector<std::uint8_t> largest = data;
      comm.all_reduce(largest.data(), count, DataType::kUint8, {.op = ReduceOp::kMax}).wait();
      for (std::size_t i = 0; i < count; ++i) {
        std::uint8_t want = 0;
        for (int r = 0; r < comm.world_size(); ++r)
          want = std::max(want, static_cast<std::uint8_t>(i * 7 + static_cast<unsigned>(r) * 50));
        ASSERT_EQ(largest[i], want) << i;
      }
    }
    std::int64_t two = 1;
    EXPECT_THROW(comm.all_reduce(&two, 1, DataType::kInt64, {.post_scale = 0.5}), CommError);
  });
}

TEST_P(Conformance, GatherBroadcastBarrier) {
  run([](Communicator& comm) {
    const auto n = static_cast<std::size_t>(comm.world_size());
    for (const std::size_t count : {0u, 1u, 32u, 33u, 5000u, 400'001u}) {
      const auto buffer = comm.allocate(count * sizeof(double));
      double* const registered = reinterpret_cast<double*>(buffer->bytes().data());
      std::vector<double> plain(count), out(n * count + 1);
      for (double* in : {registered, plain.data()}) {
        fill(in, count, comm.rank(), 5);
        comm.all_gather(in, out.data(), count, DataType::kFloat64).wait();
        for (std::size_t r = 0; r < n; ++r) {
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(out[r * count + i], value<double>(static_cast<int>(r), i, 5)) << r << " " << i;
          }
        }
        for (int root = 0; root < comm.world_size(); ++root) {
          fill(in, count, comm.rank(), 6 + root);
          comm.broadcast(in, count, DataType::kFloat64, root).wait();
          for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(in[i], value<double>(root, i, 6 + root));
          comm.barrier().wait();
        }
      }
    }
  });
}

TEST_P(Conformance, BarrierHoldsEveryoneBack) {
  std::atomic<int> entered{0};
  run([&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * ((comm.rank() + round) % 3)));
      ++entered;
      comm.barrier().wait();
      EXPECT_GE(entered.load(), round * comm.world_size());
      comm.barrier().wait();
    }
  });
}

// More operations than the ring has slots, of all kinds, waited for in a different order on every rank.
void mixed_operations(Communicator& comm) {
  constexpr std::size_t kCount = 3000;
  constexpr int kOperations = 400;
  const auto n = static_cast<std::size_t>(comm.world_size());
  const auto buffer = comm.allocate(kOperations * kCount * sizeof(float));
  float* const data = reinterpret_cast<float*>(buffer->bytes().data());
  std::vector<std::int64_t> headers(kOperations);
  std::vector<Work> works;
  for (int i = 0; i < kOperations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    fill(data + at * kCount, kCount, comm.rank(), i);
    headers[at] = comm.rank() + i;
    if (i % 3 == 2) {
      works.push_back(comm.broadcast(data + at * kCount, kCount, DataType::kFloat32, i % comm.world_size()));
    } else {
      works.push_back(comm.all_reduce(data + at * kCount, kCount, DataType::kFloat32, {.bucket = i}));
    }
    works.push_back(comm.all_reduce(&headers[at], 1, DataType::kInt64));
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
    const auto sum = static_cast<std::int64_t>(n * (n - 1) / 2 + n * at);
    EXPECT_EQ(headers[at], sum);
    if (i % 3 == 2) {
      for (std::size_t k = 0; k < kCount; ++k)
        ASSERT_EQ(data[at * kCount + k], value<float>(i % comm.world_size(), k, i));
    } else {
      expect_reduced(data + at * kCount, kCount, ReduceOp::kSum, comm.world_size(), i, 1.0, "operation");
    }
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    const WorkTiming t = works[i].timing();
    EXPECT_LE(t.enqueued, t.started);
    EXPECT_LE(t.started, t.ended);
    EXPECT_GE(t.exposed.count(), 0);
    if (i == 0) continue;
    EXPECT_LE(works[i - 1].timing().ended, t.ended) << "operations complete in the order of issue";
    EXPECT_EQ(works[i].sequence(), works[i - 1].sequence() + 1);
  }
  EXPECT_EQ(works[0].bytes(), kCount * sizeof(float));
}

TEST_P(Conformance, ManyInFlightAnyWaitOrder) {
  run(mixed_operations);
}

TEST_P(Conformance, BuffersAreZeroedAlignedAndComeAndGo) {
  run([](Communicator& comm) {
    for (int round = 0; round < 10; ++round) {
      const auto a = comm.allocate(100'000);
      auto b = comm.allocate(1);
      ASSERT_EQ(a->bytes().size(), 100'000u);
      ASSERT_EQ(b->bytes().size(), 1u);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->bytes().data()) % 64, 0u);
      for (const std::byte byte : a->bytes()) ASSERT_EQ(byte, std::byte{0});
      b.reset();
      std::memset(a->bytes().data(), 1, a->bytes().size());
      comm.all_reduce(a->bytes().data(), 25'000, DataType::kInt32).wait();
      ASSERT_EQ(*reinterpret_cast<std::int32_t*>(a->bytes().data()), comm.world_size() * 0x01010101);
      comm.barrier().wait();
    }
  });
}

TEST_P(Conformance, IdentityAndDroppedHandles) {
  run([](Communicator& comm) {
    EXPECT_EQ(comm.world_size(), GetParam().ranks);
    EXPECT_EQ(comm.backend(), GetParam().backend);
    std::vector<float> data(10'000, 1.0f);
    (void)comm.all_reduce(data.data(), data.size(), DataType::kFloat32);  // goes on without its handle
    comm.barrier().wait();
    EXPECT_EQ(data[9'999], static_cast<float>(comm.world_size()));
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* backend : {"thread", "shm"}) {
    for (const int ranks : {1, 2, 3, 4, 7}) all.push_back({backend, ranks});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.backend + std::to_string(info.param.ranks); });

TEST(ShmProcesses, SameMixAcrossProcesses) {
  for (const int ranks : {2, 3}) {
    const auto outcomes = test::run_processes(TestWorld(ranks), [](ControlPlane&, Communicator& comm) {
      check_all_reduce<float>(comm);
      mixed_operations(comm);
      if (testing::Test::HasFailure()) throw CommError("an expectation failed in this process");
    });
    for (const auto& outcome : outcomes)
      EXPECT_TRUE(outcome.status.success()) << outcome.status.describe() << outcome.error;
  }
}

}  // namespace
}  // namespace dtrain::comm
