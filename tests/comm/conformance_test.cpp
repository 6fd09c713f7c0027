// The conformance suite on the backends whose ranks share memory. Ranks are threads here (also of the shm backend,
// whose ranks then map the memory several times); the last case runs the suite across processes.
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "harness/conformance.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;

struct Case {
  std::string backend;
  int ranks;
  test::ConformanceCase conformance;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.conformance.name << " on " << one.ranks << " ranks of " << one.backend;
}

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, Holds) {
  test::run_communicator_ranks(TestWorld(GetParam().ranks), GetParam().backend, GetParam().conformance.run);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* backend : {"thread", "shm"}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const auto& one : test::conformance_cases()) all.push_back({backend, ranks, one});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.backend + std::to_string(info.param.ranks) + info.param.conformance.name;
});

class Identity : public testing::TestWithParam<std::string> {};

TEST_P(Identity, OfACommunicator) {
  test::run_communicator_ranks(TestWorld(3), GetParam(), [](Communicator& comm) {
    EXPECT_EQ(comm.world_size(), 3);
    EXPECT_EQ(comm.backend(), GetParam());
    std::int32_t sum = comm.rank();
    comm.all_reduce(&sum, 1, DataType::kInt32).wait();
    EXPECT_EQ(sum, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Identity, testing::Values("thread", "shm"));

TEST(ShmProcesses, TheSuiteAcrossProcesses) {
  for (const int ranks : {2, 7}) {
    const auto outcomes = test::run_processes(TestWorld(ranks), [](ControlPlane&, Communicator& comm) {
      for (const auto& one : test::conformance_cases()) {
        one.run(comm);
        if (testing::Test::HasFailure()) throw CommError("an expectation failed in " + one.name);
      }
    });
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.success()) << outcome.status.describe() << outcome.error;
    }
  }
}

}  // namespace
}  // namespace dtrain::comm
