// Operations that move data and compute nothing.
#include <atomic>
#include <cstring>
#include <thread>

#include "conformance_data.h"

namespace dtrain::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::size_of;

void all_gather(Communicator& comm) {
  constexpr std::size_t kMost = 100'003;
  const auto n = static_cast<std::size_t>(comm.world_size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  Areas areas(comm, n * kMost * 4);
  std::vector<std::vector<double>> values;
  for (int r = 0; r < comm.world_size(); ++r) values.push_back(small_values(r, kMost, 5));
  for (const DataType type : kAllTypes) {
    const std::size_t size = size_of(type);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{33}, std::size_t{5000}, kMost}) {
      if (count == kMost && type != DataType::kFloat32) continue;
      for (const Placing placing : kAllPlacings) {
        const auto expect_gathered = [&](const char* how) {
          for (std::size_t r = 0; r < n; ++r) {
            EXPECT_EQ(first_wrong(type, areas.out(placing) + r * count * size, {values[r].data(), count}), "")
                << name_of(type) << " x" << count << " of rank " << r << how << name_of(placing);
          }
        };
        std::byte* const out = areas.out(placing);
        fill_small(type, areas.in(placing), count, comm.rank(), 5);
        comm.all_gather(areas.in(placing), out, count, type).wait();
        expect_gathered(" ");
        std::memset(out, 0x55, n * count * size);
        std::byte* const place = out + rank * count * size;
        fill_small(type, place, count, comm.rank(), 5);
        comm.all_gather(place, out, count, type).wait();
        expect_gathered(" in place, ");
      }
    }
  }
}

void broadcast(Communicator& comm) {
  constexpr std::size_t kMost = 300'001;
  Areas areas(comm, kMost * 4);
  for (int root = 0; root < comm.world_size(); ++root) {
    const auto wanted = small_values(root, kMost, 6 + root);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{5000}, kMost}) {
      for (const Placing placing : kAllPlacings) {
        std::byte* const data = areas.in(placing);
        fill_small(DataType::kInt32, data, count, comm.rank(), 6 + root);
        comm.broadcast(data, count, DataType::kInt32, root).wait();
        EXPECT_EQ(first_wrong(DataType::kInt32, data, {wanted.data(), count}), "")
            << "x" << count << " from " << root << " " << name_of(placing);
      }
    }
  }
}

void buffers(Communicator& comm) {
  for (int round = 0; round < 5; ++round) {
    const auto a = comm.allocate(100'000);
    auto b = comm.allocate(1);
    ASSERT_EQ(a->bytes().size(), 100'000u);
    ASSERT_EQ(b->bytes().size(), 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->bytes().data()) % 64, 0u);
    for (const std::byte byte : a->bytes()) ASSERT_EQ(byte, std::byte{0});
    b.reset();
    std::memset(a->bytes().data(), 1, a->bytes().size());
    comm.all_reduce(a->bytes().data(), 25'000, DataType::kInt32).wait();
    std::int32_t first = 0;
    std::memcpy(&first, a->bytes().data(), sizeof first);
    ASSERT_EQ(first, comm.world_size() * 0x01010101);
    comm.barrier().wait();
  }
}

// Null on every rank, or one memory: what each writes all see after a barrier, which holds everyone back.
void common_memory(Communicator& comm) {
  const auto common = comm.allocate_common(100'000);
  std::int64_t have = common ? 1 : 0;
  comm.all_reduce(&have, 1, DataType::kInt64).wait();
  if (!common) {
    EXPECT_EQ(have, 0);
    return;
  }
  EXPECT_EQ(have, comm.world_size());
  ASSERT_EQ(common->bytes().size(), 100'000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(common->bytes().data()) % 64, 0u);
  for (const std::byte byte : common->bytes()) ASSERT_EQ(byte, std::byte{0});
  comm.barrier().wait();
  const auto n = static_cast<std::size_t>(comm.world_size());
  auto* const cells = reinterpret_cast<std::int32_t*>(common->bytes().data());
  for (std::size_t i = static_cast<std::size_t>(comm.rank()); i < 25'000; i += n)
    cells[i] = static_cast<std::int32_t>(i);
  comm.barrier().wait();
  for (std::size_t i = 0; i < 25'000; ++i) ASSERT_EQ(cells[i], static_cast<std::int32_t>(i));
  comm.barrier().wait();
  std::atomic_ref<std::int32_t> entered(cells[0]);
  for (int round = 1; round <= 20; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(100 * ((comm.rank() + round) % 3)));
    entered.fetch_add(1);
    comm.barrier().wait();
    EXPECT_GE(entered.load(), round * comm.world_size());
    comm.barrier().wait();
  }
}

}  // namespace

std::vector<ConformanceCase> movement_cases() {
  return {{"AllGather", all_gather}, {"Broadcast", broadcast}, {"Buffers", buffers}, {"CommonMemory", common_memory}};
}

}  // namespace dtrain::test
