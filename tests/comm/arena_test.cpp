// Operations on memory that a rank has allocated alone: values, pins, limits, fork() and the death of a rank.
#include "dtrain/comm/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include <spdlog/sinks/ostream_sink.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/subgroup.h"
#include "dtrain/base/error.h"
#include "harness/conformance.h"
#include "harness/forwarding_communicator.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::HasSubstr;

constexpr std::size_t kMega = 1u << 20;

CommunicatorOptions options_with(const TestWorld& world, std::shared_ptr<Arena> arena) {
  CommunicatorOptions options = world.communicator_options();
  options.arena = std::move(arena);
  return options;
}

// Runs fn on every rank, a thread, with its arena and a communicator that uses it.
void run_arena_ranks(const TestWorld& world, const std::function<void(Communicator&, Arena&, ControlPlane&)>& fn) {
  test::run_control_ranks(world, [&](ControlPlane& control) {
    const auto arena = make_arena(control, world.communicator_options());
    ASSERT_TRUE(arena);
    const auto comm = make_shm_communicator(control, options_with(world, arena));
    fn(*comm, *arena, control);
  });
}

// A piece of an arena, as floats.
class Piece {
 public:
  Piece(Arena& arena, std::size_t count)
      : arena_(arena), data_(static_cast<float*>(arena.allocate(count * sizeof(float)))) {}
  ~Piece() { arena_.free(data_); }
  Piece& operator=(Piece&&) = delete;
  operator float*() const { return data_; }

 private:
  Arena& arena_;
  float* data_;
};

// The whole suite, where each rank allocates its Buffers alone.
class ArenaCommunicator final : public test::ForwardingCommunicator {
 public:
  ArenaCommunicator(Communicator& inner, Arena& arena) : ForwardingCommunicator(inner), arena_(arena) {}
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override { return std::make_unique<OfArena>(arena_, bytes); }

 private:
  class OfArena final : public Buffer {
   public:
    OfArena(Arena& arena, std::size_t bytes)
        : arena_(arena), data_(static_cast<std::byte*>(arena.allocate(bytes))), bytes_(bytes) {
      std::memset(data_, 0, bytes);
    }
    ~OfArena() override { arena_.free(data_); }
    std::span<std::byte> bytes() override { return {data_, bytes_}; }

   private:
    Arena& arena_;
    std::byte* data_;
    std::size_t bytes_;
  };
  Arena& arena_;
};

struct Case {
  int ranks;
  test::ConformanceCase conformance;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.conformance.name << " on " << one.ranks << " ranks";
}

class ArenaConformance : public testing::TestWithParam<Case> {};

TEST_P(ArenaConformance, Holds) {
  run_arena_ranks(TestWorld(GetParam().ranks), [](Communicator& comm, Arena& arena, ControlPlane&) {
    ArenaCommunicator alone(comm, arena);
    GetParam().conformance.run(alone);
    EXPECT_EQ(arena.statistics().in_use, 0u) << "pieces are left";
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : {1, 2, 3, 5}) {
    for (const auto& one : test::conformance_cases()) all.push_back({ranks, one});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ArenaConformance, testing::ValuesIn(cases()), [](const auto& info) {
  return std::to_string(info.param.ranks) + info.param.conformance.name;
});

// Reductions, gathers and broadcasts, of data that is small enough for the announcement, for scratch, and neither. With
// `mixed` only ranks of even number have theirs in the arena.
void check_values(Communicator& comm, Arena& arena, bool mixed) {
  const int n = comm.world_size(), rank = comm.rank();
  const auto at = [](int r, std::size_t i) { return static_cast<float>(r * 7 + 1 + static_cast<int>(i % 1000)); };
  for (const std::size_t count : {std::size_t{50}, std::size_t{5'003}, std::size_t{300'007}}) {
    SCOPED_TRACE(count);
    const std::size_t all = count * static_cast<std::size_t>(n);
    std::vector<float> plain(all), plain_out(all);
    const Piece piece(arena, all), piece_out(arena, all);
    const bool in_arena = !mixed || rank % 2 == 0;
    float* const in = in_arena ? piece : plain.data();
    float* const out = in_arena ? piece_out : plain_out.data();
    const auto fill = [&](std::size_t size) {
      for (std::size_t i = 0; i < size; ++i) in[i] = at(rank, i);
    };
    const auto sum = [&](std::size_t i) {
      float total = 0;
      for (int r = 0; r < n; ++r) total += at(r, i);
      return total;
    };
    const auto expect = [&](const float* data, std::size_t size, const auto& value, const char* what) {
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < size; ++i) wrong += data[i] != value(i);
      EXPECT_EQ(wrong, 0u) << what;
    };
    for (float* const to : {out, in}) {
      fill(count);
      comm.all_reduce(in, to, count, DataType::kFloat32, {}).wait();
      expect(to, count, sum, to == in ? "all_reduce in place" : "all_reduce");
    }
    fill(all);
    comm.reduce_scatter(in, out, count, DataType::kFloat32, {}).wait();
    const std::size_t first = static_cast<std::size_t>(rank) * count;
    expect(
        out, count, [&](std::size_t i) { return sum(first + i); }, "reduce_scatter");
    fill(count);
    comm.all_gather(in, out, count, DataType::kFloat32).wait();
    const auto gathered = [&](std::size_t i) { return at(static_cast<int>(i / count), i % count); };
    expect(out, all, gathered, "all_gather");
    fill(count);
    comm.broadcast(in, count, DataType::kFloat32, n - 1).wait();
    expect(
        in, count, [&](std::size_t i) { return at(n - 1, i); }, "broadcast");
    comm.barrier().wait();
  }
}

TEST(Arena, ValuesInItAndWhereOnlySomeRanksAreInIt) {
  for (const int ranks : {2, 4}) {
    run_arena_ranks(TestWorld(ranks), [](Communicator& comm, Arena& arena, ControlPlane&) {
      check_values(comm, arena, false);
      check_values(comm, arena, true);
    });
  }
}

TEST(Arena, SubgroupsUseTheArenaOfTheWorld) {
  const TestWorld world(5);
  run_arena_ranks(world, [&](Communicator& all, Arena& arena, ControlPlane& control) {
    std::shared_ptr<Arena> shared(&arena, [](Arena*) {});
    const bool odd = control.world().rank % 2 == 1;
    const std::vector<int> members = odd ? std::vector<int>{3, 1} : std::vector<int>{0, 2, 4};
    ControlSubgroup group(control, odd ? "odd" : "even", members);
    const auto comm = make_shm_communicator(group, options_with(world, shared), members);
    for (const bool mixed : {false, true}) check_values(*comm, arena, mixed);
    // Of the group and of the world at the same time.
    const Piece mine(arena, 50'000), ours(arena, 50'000);
    std::fill_n(static_cast<float*>(mine), 50'000, 1.0F);
    std::fill_n(static_cast<float*>(ours), 50'000, 1.0F);
    Work of_group = comm->all_reduce(mine, 50'000, DataType::kFloat32);
    Work of_world = all.all_reduce(ours, 50'000, DataType::kFloat32);
    of_group.wait();
    of_world.wait();
    EXPECT_EQ(mine[49'999], odd ? 2.0F : 3.0F);
    EXPECT_EQ(ours[49'999], 5.0F);
    all.barrier().wait();
  });
}

TEST(Arena, EachHostHasItsOwn) {
  TestWorld world(4);
  world.hosts = {"a", "b", "a", "b"};
  auto outer = test::make_thread_communicators(2, world.communicator_options());
  auto outer_notes = test::make_thread_communicators(2, world.communicator_options());
  test::run_control_ranks(world, [&](ControlPlane& control) {
    const auto arena = make_arena(control, world.communicator_options());
    ASSERT_TRUE(arena);
    const int rank = control.world().rank;
    EXPECT_FALSE(arena->memory_of(rank).empty());
    EXPECT_TRUE(arena->memory_of((rank + 1) % 4).empty()) << "a rank of the other host";
    std::size_t made = 0;
    const auto comm = make_hierarchical_communicator(
        control,
        [&](ControlPlane& host, const std::vector<int>& members) {
          return make_shm_communicator(host, options_with(world, arena), members);
        },
        [&](ControlPlane& leaders, const std::vector<int>&) {
          auto& of = made++ == 0 ? outer_notes : outer;
          return std::move(of[static_cast<std::size_t>(leaders.world().rank)]);
        },
        options_with(world, arena));
    check_values(*comm, *arena, false);
    check_values(*comm, *arena, true);
    EXPECT_EQ(arena->statistics().in_use, 0u);
  });
}

TEST(Arena, APieceThatIsFreedUnderAnOperationStaysUntilItsEnd) {
  run_arena_ranks(TestWorld(2), [](Communicator& comm, Arena& arena, ControlPlane&) {
    constexpr std::size_t kCount = 100'000;
    constexpr std::size_t kBytes = kCount * sizeof(float);
    auto* const data = static_cast<float*>(arena.allocate(kBytes));
    std::fill_n(data, kCount, 2.0F);
    comm.barrier().wait();
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(arena.is_pinned(data));
    Work work = comm.all_reduce(data, kCount, DataType::kFloat32);
    if (comm.rank() == 0) {
      EXPECT_TRUE(arena.is_pinned(data + kCount / 2));
      arena.free(data);
      EXPECT_THROW(arena.free(data), CommError);
      EXPECT_THROW(comm.broadcast(data, kCount, DataType::kFloat32, 0), CommError);
      void* const other = arena.allocate(kBytes);
      EXPECT_NE(other, static_cast<void*>(data));
      arena.free(other);
      EXPECT_GE(arena.statistics().in_use, kBytes);
    }
    work.wait();
    EXPECT_EQ(data[kCount - 1], 4.0F) << "nobody has had the memory since";
    EXPECT_FALSE(arena.is_pinned(data));
    if (comm.rank() == 1) arena.free(data);
    EXPECT_EQ(arena.statistics().in_use, 0u);
  });
}

TEST(Arena, AnOperationOnFreedMemoryIsRefused) {
  run_arena_ranks(TestWorld(1), [](Communicator& comm, Arena& arena, ControlPlane&) {
    auto* const data = static_cast<float*>(arena.allocate(4000));
    EXPECT_THROW(comm.all_reduce(data, 2000, DataType::kFloat32), CommError) << "more than the piece";
    arena.free(data);
    try {
      comm.all_reduce(data, 1000, DataType::kFloat32);
      FAIL() << "it was freed";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the memory was freed"));
    }
    arena.free(nullptr);
  });
}

TEST(Arena, ThreadsGetMemoryOfTheirOwn) {
  run_arena_ranks(TestWorld(1), [](Communicator&, Arena& arena, ControlPlane&) {
    test::run_ranks(4, [&](int thread) {
      std::vector<std::pair<unsigned char*, std::size_t>> pieces;
      unsigned random = 17u + static_cast<unsigned>(thread);
      for (int i = 0; i < 4000; ++i) {
        random = random * 1664525u + 1013904223u;
        if (pieces.size() < 20 && random >> 31) {
          const std::size_t bytes = 1 + (random >> 8) % 20'000;
          auto* const data = static_cast<unsigned char*>(arena.allocate(bytes));
          std::memset(data, 16 * thread + static_cast<int>(bytes % 16), bytes);
          pieces.emplace_back(data, bytes);
        } else if (!pieces.empty()) {
          const std::size_t which = (random >> 8) % pieces.size();
          const auto [data, bytes] = pieces[which];
          const auto wanted = static_cast<unsigned char>(16 * thread + static_cast<int>(bytes % 16));
          EXPECT_EQ(std::count(data, data + bytes, wanted), static_cast<std::ptrdiff_t>(bytes));
          arena.free(data);
          pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      for (const auto& [data, bytes] : pieces) arena.free(data);
    });
    EXPECT_EQ(arena.statistics().in_use, 0u);
  });
}

TEST(Arena, RanksWithDifferentOnesAreRefused) {
  TestWorld world(2);
  EXPECT_THROW(test::run_control_ranks(world,
                                       [&](ControlPlane& control) {
                                         auto arena = make_arena(control, world.communicator_options());
                                         if (control.world().rank == 1) arena.reset();
                                         (void)make_shm_communicator(control, options_with(world, arena));
                                       }),
               CommError);
}

// Where an expectation of a rank's process fails, its parent has to learn it.
void must(bool holds, const std::string& what) {
  if (!holds) throw CommError(what);
}

void expect_success(const std::vector<test::RankOutcome>& outcomes) {
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.success()) << outcome.status.describe() << outcome.error;
  }
}

TEST(ArenaProcesses, TheSuiteAcrossProcesses) {
  const TestWorld world(3);
  expect_success(test::run_processes(world, [&](ControlPlane& control, Communicator&) {
    const auto arena = make_arena(control, world.communicator_options());
    const auto comm = make_shm_communicator(control, options_with(world, arena));
    ArenaCommunicator alone(*comm, *arena);
    for (const auto& one : test::conformance_cases()) {
      one.run(alone);
      must(!testing::Test::HasFailure(), "an expectation failed in " + one.name);
    }
  }));
}

void limit(__rlimit_resource resource, std::size_t most) {
  const rlimit value{most, most};
  must(::setrlimit(resource, &value) == 0, "setrlimit failed");
}

// Bytes of addresses that this process has mapped.
std::size_t mapped() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Runs two ranks, of which one sets itself a limit, and checks the arena's size (0: none) and that sums are right.
void run_limited(const std::function<void()>& set_limit, std::size_t least, std::size_t most) {
  const TestWorld world(2);
  expect_success(test::run_processes(world, [&](ControlPlane& control, Communicator&) {
    const int rank = control.world().rank;
    if (rank == 1) set_limit();
    std::ostringstream text;
    CommunicatorOptions options = world.communicator_options();
    options.log =
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text, true));
    options.arena = make_arena(control, options);
    const std::size_t size = options.arena ? options.arena->statistics().capacity : 0;
    must(size >= least && size <= most, "the arena has " + std::to_string(size) + " bytes");
    const std::string log = text.str();
    must(std::count(log.begin(), log.end(), '\n') == (rank == 0 ? 1 : 0), "logged: " + log);
    must(rank != 0 || log.find("rank 1: cannot") != std::string::npos, "logged: " + log);
    const auto comm = make_shm_communicator(control, options);
    std::vector<float> data(5000, 1.0F);
    comm->all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
    must(data[4999] == 2.0F, "the sum is wrong");
    if (!options.arena) return;
    Arena& arena = *options.arena;
    auto* const large = static_cast<std::byte*>(arena.allocate(size + 1));
    must(!arena.contains(large, 1), "there is room for more than all");
    std::memset(large, 1, size + 1);
    arena.free(large);
    void* const whole = arena.allocate(size);
    must(arena.contains(whole, size), "there is no room for all");
    must(!arena.contains(arena.allocate(1), 1), "there is room for more than all");
    arena.free(whole);
  }));
}

TEST(ArenaProcesses, IsSmallerWhereALimitOfOneRankAllowsLess) {
  run_limited([] { limit(RLIMIT_FSIZE, 256 * kMega); }, 64 * kMega, 128 * kMega);
  run_limited([] { limit(RLIMIT_AS, mapped() + 800 * kMega); }, 64 * kMega, 200 * kMega);
}

TEST(ArenaProcesses, IsNotThereWhereALimitOfOneRankAllowsTooLittle) {
  run_limited([] { limit(RLIMIT_FSIZE, 100 * kMega); }, 0, 0);
  run_limited([] { limit(RLIMIT_AS, mapped() + 200 * kMega); }, 0, 0);
}

TEST(ArenaProcesses, AChildLeavesTheMemoryOfItsParentAlone) {
  const TestWorld world(2);
  expect_success(test::run_processes(world, [&](ControlPlane& control, Communicator&) {
    const auto arena = make_arena(control, world.communicator_options());
    must(arena->statistics().resident == 0, "memory is touched before it is used");
    auto* const data = static_cast<unsigned char*>(arena->allocate(kMega));
    std::memset(data, 7, kMega);
    void* const kept = arena->allocate(100);
    arena->free(arena->allocate(kMega));
    const ArenaStatistics before = arena->statistics();
    const pid_t child = ::fork();
    if (child == 0) {
      bool right = data[kMega - 1] == 7;
      for (int i = 0; i < 100; ++i) {
        void* const own = arena->allocate(10'000);
        right = right && !arena->contains(own, 1);
        std::memset(own, 1, 10'000);
        if (i % 2 == 0) arena->free(own);
      }
      arena->free(data);
      arena->free(data);
      arena->free(kept);
      ::_exit(right ? 0 : 1);
    }
    int status = -1;
    must(::waitpid(child, &status, 0) == child && status == 0, "the child ended with " + std::to_string(status));
    const ArenaStatistics after = arena->statistics();
    must(after.in_use == before.in_use && after.peak == before.peak, "the child has changed the pool");
    must(std::count(data, data + kMega, 7) == static_cast<std::ptrdiff_t>(kMega), "the child has changed the memory");
    arena->free(data);
    arena->free(kept);
    must(arena->statistics().in_use == 0, "pieces are left");
    control.barrier("both");
  }));
}

TEST(ArenaProcesses, ARankThatIsKilledIsNamedAndTheOthersKeepTheirMemory) {
  const TestWorld world(3);
  int begun[2];
  ASSERT_EQ(::pipe(begun), 0);
  const auto outcomes = test::run_processes(world, [&](ControlPlane& control, Communicator&) {
    const auto arena = make_arena(control, world.communicator_options());
    const auto comm = make_shm_communicator(control, options_with(world, arena));
    auto* const data = static_cast<float*>(arena->allocate(kMega));
    auto* const other = static_cast<unsigned char*>(arena->allocate(kMega));
    std::memset(other, 9, kMega);
    char byte = 0;
    for (int peers = 0; comm->rank() == 1; ++peers) {
      if (peers == 2) ::raise(SIGKILL);
      must(::read(begun[0], &byte, 1) == 1, "a peer has not begun");
    }
    std::string failure;
    try {
      auto sum = comm->all_reduce(data, kMega / sizeof(float), DataType::kFloat32);
      must(::write(begun[1], &byte, 1) == 1, "rank 1 does not hear of it");
      sum.wait();
    } catch (const CommError& error) {
      failure = error.what();
    }
    must(failure.find("rank 1") != std::string::npos, "the error is '" + failure + "'");
    must(arena->is_pinned(data), "a peer may still write to it");
    arena->free(data);
    void* const next = arena->allocate(kMega);
    must(arena->contains(next, kMega) && next != data, "the piece was handed out again");
    must(std::count(other, other + kMega, 9) == static_cast<std::ptrdiff_t>(kMega), "memory has changed");
  });
  for (const int end : begun) ::close(end);
  EXPECT_EQ(outcomes[1].status.signal, SIGKILL);
  for (const std::size_t r : {0, 2}) EXPECT_TRUE(outcomes[r].status.success()) << outcomes[r].error;
}

}  // namespace
}  // namespace dtrain::comm
