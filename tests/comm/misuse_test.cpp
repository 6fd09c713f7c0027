// What happens when ranks do not do the same, do not come, stop or die: all ranks get an error that names who and what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include <spdlog/sinks/ostream_sink.h>

#include "dtrain/base/error.h"
#include "harness/misuse.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// Runs fn on every rank and returns the text of each one's CommError ("" where none came).
std::vector<std::string> errors_of(const TestWorld& world, const std::string& backend,
                                   const std::function<void(Communicator&)>& fn) {
  std::vector<std::string> errors(static_cast<std::size_t>(world.size));
  test::run_communicator_ranks(world, backend, [&](Communicator& comm) {
    try {
      fn(comm);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  return errors;
}

class MisuseTable : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(MisuseTable, BothOperationsAreNamedOnEveryRank) {
  const auto [backend, ranks] = GetParam();
  for (const auto& misuse : test::misuse_cases()) {
    SCOPED_TRACE(misuse.name);
    const auto errors = errors_of(TestWorld(ranks), backend, [&](Communicator& comm) {
      std::vector<float> data(5000u * static_cast<unsigned>(comm.world_size()));
      const auto buffer = comm.allocate(6000 * sizeof(float));  // operation 0
      comm.barrier().wait();                                    // operation 1
      const bool last = comm.rank() == comm.world_size() - 1;
      (last ? misuse.last : misuse.most)(comm, data.data()).wait();
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, ContainsRegex("; rank [0-9]+ found out after [0-9.]+ (ns|us|ms|s)"));
      EXPECT_THAT(error, HasSubstr(misuse.text(2, ranks)));
    }
  }
}

// The errors of waiting ranks name what they waited for and how long, then why it ended.
TEST_P(MisuseTable, WhoWaitsSaysForWhat) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend, [](Communicator& comm) {
    std::vector<float> data(5000);
    if (comm.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (comm.rank() == 1) return comm.abort("rank 1 failed at step 7: loss is NaN");
    comm.all_reduce(data.data(), 5000, DataType::kFloat32, {.bucket = 3}).wait();
  });
  EXPECT_THAT(errors[0],
              MatchesRegex("all_reduce\\(sum, float32, 5000 elements, bucket 3\\), operation 0, was stopped after "
                           "[0-9.]+ ms: rank 1 failed at step 7: loss is NaN"));
}

TEST_P(MisuseTable, AReleasedBuffer) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend, [](Communicator& comm) {
    auto buffer = comm.allocate(5000 * sizeof(float));
    std::vector<float> plain(5000);
    comm.barrier().wait();
    void* const data = comm.rank() == 0 ? static_cast<void*>(plain.data()) : buffer->bytes().data();
    if (comm.rank() == 0) buffer.reset();
    comm.all_reduce(data, 5000, DataType::kFloat32, {.bucket = 2}).wait();
  });
  EXPECT_THAT(errors[0], MatchesRegex("all_reduce\\(sum, float32, 5000 elements, bucket 2\\), operation 2: rank 1 uses "
                                      "buffer 0, which rank 0 has released; rank 0 found out after .*"));
  for (std::size_t r = 1; r < errors.size(); ++r) {
    EXPECT_THAT(errors[r], HasSubstr("rank 1 uses buffer 0, which rank 0 has released"));
  }
}

// What was issued in the group never reaches the peers; they get the cause.
TEST_P(MisuseTable, AnExceptionLeavesAGroupOpen) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend, [](Communicator& comm) {
    std::vector<float> data(5000);
    if (comm.rank() == 0) {
      Work work;
      try {
        const Group group(comm);
        work = comm.all_reduce(data.data(), 5000, DataType::kFloat32);
        throw std::runtime_error("the loader ran dry");
      } catch (const std::runtime_error& error) {
        EXPECT_THROW(work.wait(), CommError);
        EXPECT_THROW(comm.begin_group(), CommError);
        EXPECT_THROW((void)comm.allocate(64), CommError);
        comm.abort(error.what());
      }
      work.wait();
      return;
    }
    comm.all_reduce(data.data(), 5000, DataType::kFloat32).wait();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("the loader ran dry"));
}

TEST_P(MisuseTable, CommonMemoryOfDifferentSizes) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend,
                                [](Communicator& comm) { (void)comm.allocate_common(comm.rank() == 0 ? 10 : 20); });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("as their operation 0: rank 0 allocate_common(10 bytes), rank 1 allocate_common(20 "
                                 "bytes)"));
  }
}

TEST_P(MisuseTable, AllocationsOfDifferentSizes) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend,
                                [](Communicator& comm) { (void)comm.allocate(comm.rank() == 1 ? 2000 : 1000); });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 allocate(1000 bytes)"), HasSubstr("rank 1 allocate(2000 bytes)")));
  }
}

TEST_P(MisuseTable, LaterCallsFailWithTheSameCause) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend, [](Communicator& comm) {
    std::vector<float> data(9000);
    Work first;
    Work second;
    try {
      first = comm.all_reduce(data.data(), comm.rank() == 0 ? 8000 : 9000, DataType::kFloat32);
      second = comm.barrier();
      first.wait();
      ADD_FAILURE() << "sizes differ";
    } catch (const CommError&) {
    }
    if (second) {
      EXPECT_THROW(second.wait(), CommError);
    }
    EXPECT_THROW(comm.barrier(), CommError);
    EXPECT_THROW(comm.progress(), CommError);
    (void)comm.allocate(64);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("8000 elements"));
}

TEST_P(MisuseTable, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  const auto [backend, ranks] = GetParam();
  TestWorld world(ranks);
  world.timeout = std::chrono::milliseconds(400);
  std::atomic<int> waiting{ranks - 1};
  const auto errors = errors_of(world, backend, [&](Communicator& comm) {
    std::vector<float> data(5000);
    if (comm.rank() == 1) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      comm.all_reduce(data.data(), data.size(), DataType::kFloat32, {.bucket = 7}).wait();
    } catch (const CommError&) {
      --waiting;
      throw;
    }
  });
  for (int r = 0; r < ranks; ++r) {
    if (r == 1) continue;
    EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                AllOf(HasSubstr("all_reduce(sum, float32, 5000 elements, bucket 7)"), HasSubstr("operation 0"),
                      HasSubstr("timed out after 400"), HasSubstr("missing: rank 1 has not entered it"),
                      Not(HasSubstr("rank 2 has not"))));
    if (backend == "shm") {
      EXPECT_THAT(errors[static_cast<std::size_t>(r)], HasSubstr("late: its heartbeats come"));
    }
  }
}

TEST_P(MisuseTable, AbortFromAnotherThreadWakesAll) {
  const auto [backend, ranks] = GetParam();
  const auto errors = errors_of(TestWorld(ranks), backend, [](Communicator& comm) {
    if (comm.rank() == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        comm.abort("the disk is full");
        comm.abort("a later cause");
      });
      struct Join {
        std::thread& thread;
        ~Join() { thread.join(); }
      } join{other};
      comm.barrier().wait();
      comm.barrier().wait();
      return;
    }
    comm.barrier().wait();
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    comm.barrier().wait();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("the disk is full"), Not(HasSubstr("later"))));
  }
}

TEST(Misuse, ACommunicatorClosedEarlyIsToldToTheOthers) {
  std::vector<std::string> errors(3);
  std::atomic<bool> entered{false};
  test::run_control_ranks(TestWorld(3), [&](ControlPlane& control) {
    auto comm = make_shm_communicator(control, TestWorld(3).communicator_options());
    std::vector<float> data(1000);
    const int rank = comm->rank();
    while (rank != 0 && !entered) std::this_thread::yield();  // so that rank 0 cannot complete it on entering it
    try {
      Work sum = comm->all_reduce(data.data(), 1000, DataType::kFloat32);
      if (rank == 0) {
        entered = true;
        comm.reset();
      }
      sum.wait();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
    control.barrier("all have seen it");
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 0 has closed its communicator"));
  for (int r = 1; r < 3; ++r) {
    EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                AllOf(HasSubstr("all_reduce(sum, float32, 1000 elements)"), HasSubstr("rank 0 has "),
                      HasSubstr("and has closed its communicator")));
  }
}

// As when an exception unwinds the stack between an operation and its wait(): the Buffer goes first, then the
// communicator, whose destructor can neither complete the operation nor throw. The handle that is left has the cause.
TEST(Misuse, ABufferReleasedUnderAnOperationThenTheCommunicator) {
  for (const int ranks : {2, 3}) {
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    std::atomic<int> entered{0};
    test::run_control_ranks(TestWorld(ranks), [&](ControlPlane& control) {
      auto comm = make_shm_communicator(control, TestWorld(ranks).communicator_options());
      const int rank = comm->rank();
      auto buffer = comm->allocate(5000 * sizeof(float));
      while (rank != 0 && entered == 0) std::this_thread::yield();  // so that rank 0 cannot complete it on entering it
      Work work = comm->all_reduce(buffer->bytes().data(), 5000, DataType::kFloat32);
      ++entered;
      if (rank == 0) {
        while (entered < ranks) std::this_thread::yield();
        buffer.reset();
        comm.reset();
      }
      try {
        work.wait();
      } catch (const CommError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
      control.barrier("all have seen it");
    });
    EXPECT_THAT(errors[0], HasSubstr("which rank 0 has released"));
    for (std::size_t r = 1; r < errors.size(); ++r) {
      EXPECT_THAT(errors[r], AllOf(HasSubstr("rank 0 has entered but not done its part"),
                                   HasSubstr("has closed its communicator")));
    }
  }
}

// A failing rank unwinds its communicator before it has reported why: the others still get the cause.
TEST(Misuse, TheCauseWinsOverTheClosedCommunicator) {
  std::vector<std::string> errors(3);
  test::run_control_ranks(TestWorld(3), [&](ControlPlane& control) {
    auto comm = make_shm_communicator(control, TestWorld(3).communicator_options());
    comm->barrier().wait();  // all are set up
    std::vector<float> data(1000);
    const int rank = comm->rank();
    try {
      Work sum = comm->all_reduce(data.data(), 1000, DataType::kFloat32);
      if (rank == 1) {
        comm.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        control.fail({1, 4, "loss is NaN"});
        return;
      }
      comm->barrier().wait();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
    // A peer's abort may be here before this rank's own control plane has the cause.
    while (!control.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(r)], HasSubstr("rank 1 failed at step 4: loss is NaN"));
  }
}

// Ranks that still wait when the deadline passes all end then, those behind the one that is missing too.
TEST_P(MisuseTable, WhatStandsBehindAMissingOneNamesBoth) {
  const auto [backend, ranks] = GetParam();
  TestWorld world(ranks);
  world.timeout = std::chrono::milliseconds(300);
  std::atomic<int> waiting{ranks - 1};
  const auto errors = errors_of(world, backend, [&](Communicator& comm) {
    std::vector<float> data(10'000);
    if (comm.rank() == 0) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      (void)comm.all_reduce(data.data(), 5000, DataType::kFloat32, {.bucket = 0});
      comm.reduce_scatter(data.data() + 5000, data.data(), 10, DataType::kFloat32, {.bucket = 1}).wait();
    } catch (const CommError&) {
      --waiting;
      throw;
    }
  });
  EXPECT_THAT(
      errors[1],
      AllOf(HasSubstr("reduce_scatter(sum, float32, 10 elements a rank, bucket 1), operation 1, timed out after "
                      "300"),
            HasSubstr("behind all_reduce(sum, float32, 5000 elements, bucket 0), operation 0; missing: rank 0 "
                      "has not entered it")));
}

INSTANTIATE_TEST_SUITE_P(Backends, MisuseTable,
                         testing::Combine(testing::Values("thread", "shm"), testing::Values(2, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST(Misuse, SingleRankArguments) {
  auto ranks = test::make_thread_communicators(1, {});
  float x = 3;
  EXPECT_THROW(ranks[0]->broadcast(&x, 1, DataType::kFloat32, 1), CommError);
  EXPECT_THROW(ranks[0]->all_reduce(nullptr, 1, DataType::kFloat32), CommError);
  ranks[0]->all_reduce(&x, 1, DataType::kFloat32, {.post_scale = 0.5}).wait();
  EXPECT_EQ(x, 1.5f);
  EXPECT_THROW(test::make_thread_communicators(0, {}), CommError);
}

TEST(Misuse, StagingIsReportedOnce) {
  std::ostringstream text;
  CommunicatorOptions options;
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text, true));
  auto ranks = test::make_thread_communicators(2, options);
  test::run_ranks(2, [&](int rank) {
    Communicator& comm = *ranks[static_cast<std::size_t>(rank)];
    constexpr std::size_t kCount = 300'000;
    const auto buffer = comm.allocate(kCount * sizeof(float));
    comm.all_reduce(buffer->bytes().data(), kCount, DataType::kFloat32).wait();
    std::vector<float> plain(kCount);
    comm.all_reduce(plain.data(), 1000, DataType::kFloat32).wait();
    void* const data = rank == 0 ? plain.data() : static_cast<void*>(buffer->bytes().data());
    for (int i = 0; i < 3; ++i) comm.all_reduce(data, kCount, DataType::kFloat32).wait();
  });
  const std::string log = text.str();
  EXPECT_THAT(log, HasSubstr("rank 0: all_reduce(sum, float32, 300000 elements) is staged"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(Misuse, RanksOfDifferentHostsAreRefused) {
  std::atomic<int> refused{0};
  test::run_ranks(1, [](int) {});
  TestWorld world(2);
  std::mutex mutex;
  ControlEndpoint endpoint;
  auto server = ControlPlane::serve(world.control_options(0), {}, &endpoint);
  test::run_ranks(2, [&](int rank) {
    ControlOptions options = world.control_options(rank);
    if (rank == 1) options.world.host = "another-host";
    const auto client = rank == 1 ? ControlPlane::connect(options, endpoint) : nullptr;
    ControlPlane& control = rank == 1 ? *client : *server;
    try {
      (void)make_shm_communicator(control, world.communicator_options());
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("test-host"), HasSubstr("rank 1 on 'another-host'")));
      ++refused;
    }
    control.finish();
  });
  EXPECT_EQ(refused, 2);
}

// From here on ranks are processes.

TEST(ProcessMisuse, AKilledRankIsNamedWithItsPid) {
  for (const int victim : {0, 1, 2}) {
    TestWorld world(3);
    std::vector<pid_t> pids;
    const auto outcomes = test::run_processes(world,
                                              [&](ControlPlane& control, Communicator& comm) {
                                                control.set_step(17);
                                                std::vector<float> data(100'000);
                                                for (;;) {
                                                  comm.all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
                                                  if (comm.rank() == victim)
                                                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                                }
                                              },
                                              {[&](const std::vector<pid_t>& running) {
                                                pids = running;
                                                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                                                kill(running[static_cast<std::size_t>(victim)], SIGKILL);
                                              }});
    EXPECT_EQ(outcomes[static_cast<std::size_t>(victim)].status.signal, SIGKILL);
    const std::string who = "rank " + std::to_string(victim);
    const std::string gone = who + " (pid " + std::to_string(pids[static_cast<std::size_t>(victim)]) + ") is gone";
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(outcomes[static_cast<std::size_t>(r)].status.code, 1);
      EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].error, AllOf(HasSubstr(who + " failed"), HasSubstr(gone)));
      if (victim != 0) {
        EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].error, HasSubstr("at step 17"));
      }
    }
  }
}

TEST(ProcessMisuse, AStoppedRankIsToldFromALateOne) {
  TestWorld world(2);
  world.timeout = std::chrono::milliseconds(1500);
  const auto outcomes = test::run_processes(world,
                                            [&](ControlPlane&, Communicator& comm) {
                                              for (;;) comm.barrier().wait();
                                            },
                                            {[&](const std::vector<pid_t>& pids) {
                                              kill(pids[1], SIGSTOP);
                                              std::this_thread::sleep_for(std::chrono::milliseconds(3000));
                                              kill(pids[1], SIGKILL);
                                            }});
  EXPECT_THAT(outcomes[0].error, AllOf(HasSubstr("barrier"), HasSubstr("timed out after 1.5"),
                                       HasSubstr("missing: rank 1"), HasSubstr("stopped: no heartbeats")));
}

TEST(ProcessMisuse, TheCauseOfTheFailingRankReachesAll) {
  const auto outcomes = test::run_processes(TestWorld(3), [&](ControlPlane& control, Communicator& comm) {
    for (int step = 0;; ++step) {
      if (comm.rank() == 2 && step == 5) {
        control.fail({2, step, "loss is NaN"});
        throw CommError("loss is NaN");
      }
      comm.barrier().wait();
    }
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].error, HasSubstr("rank 2 failed at step 5: loss is NaN"));
  }
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::size_t mappings_of(const std::string& what) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(what) != std::string::npos;
  return count;
}

TEST(Leaks, NoDescriptorAndNoMappingIsLeft) {
  const auto once = [] {
    test::run_communicator_ranks(TestWorld(3), "shm", [](Communicator& comm) {
      const auto buffer = comm.allocate(1 << 20);
      comm.all_reduce(buffer->bytes().data(), 1000, DataType::kFloat32).wait();
      if (comm.rank() == 0) {
        EXPECT_GE(mappings_of("dtrain-buffer"), 3u);
      }
      comm.barrier().wait();
    });
  };
  once();  // what is opened once for good (such as randomness) is open now
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(mappings_of("dtrain-"), 0u);
}

}  // namespace
}  // namespace dtrain::comm
