// The mpi backend under mpirun: the conformance suite, and what happens when ranks do not do the same, do not come,
// stop or die. On one host and on two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "mpirun.h"

namespace dtrain::comm {
namespace {

using test::MpirunOutcome;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kSkipped = 77;  // two_hosts.sh

void expect_all_ok(const MpirunOutcome& outcome, int ranks) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (int r = 0; r < ranks; ++r) {
    const auto said = outcome.ranks.find(r);
    EXPECT_TRUE(said != outcome.ranks.end() && said->second == "ok") << "rank " << r << ": " << outcome.output;
  }
}

class MpiConformance : public testing::TestWithParam<int> {};

TEST_P(MpiConformance, Holds) {
  expect_all_ok(test::run_ranks_with_mpirun(GetParam(), "mpi conformance"), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiConformance, testing::Values(2, 3, 4), testing::PrintToStringParamName());

TEST(HierarchicalOverMpi, TheSuiteHoldsWithRanksThatTakeTurnsOnTheHosts) {
  expect_all_ok(test::run_ranks_with_mpirun(4, "alternating conformance"), 4);
}

TEST(MpiOnTwoHosts, TheSuiteHolds) {
  const MpirunOutcome outcome = test::run_ranks_on_two_hosts("unshaped", 1, 1, "", "mpi conformance");
  if (outcome.exit_code == kSkipped) GTEST_SKIP() << outcome.output;
  expect_all_ok(outcome, 2);
}

TEST(MpiOnTwoHosts, ARankThatIsKilledIsNamedOnTheOtherHost) {
  const MpirunOutcome outcome = test::run_ranks_on_two_hosts("unshaped", 1, 1, "", "mpi misuse killed");
  if (outcome.exit_code == kSkipped) GTEST_SKIP() << outcome.output;
  EXPECT_NE(outcome.exit_code, 0);
  ASSERT_TRUE(outcome.ranks.contains(0)) << outcome.output;
  EXPECT_THAT(outcome.ranks.at(0), AllOf(HasSubstr("all_reduce(sum, float32, 5000 elements, bucket 7), operation "),
                                         HasSubstr("rank 1 failed"), HasSubstr("is gone: connection lost")));
}

// Shared memory within a host, MPI between them, in the order in which mpirun fills hosts and the other way round.
TEST(HierarchicalOnTwoHosts, TheSuiteHolds) {
  for (const auto& [a, b, options] : {std::tuple{2, 2, ""}, std::tuple{2, 1, "--map-by node"}}) {
    const MpirunOutcome outcome = test::run_ranks_on_two_hosts("unshaped", a, b, options, "hierarchical conformance");
    if (outcome.exit_code == kSkipped) GTEST_SKIP() << outcome.output;
    expect_all_ok(outcome, a + b);
  }
}

TEST(HierarchicalOnTwoHosts, ARankThatIsKilledIsNamedOnBoth) {
  const MpirunOutcome outcome = test::run_ranks_on_two_hosts("unshaped", 2, 2, "", "hierarchical misuse killed");
  if (outcome.exit_code == kSkipped) GTEST_SKIP() << outcome.output;
  EXPECT_NE(outcome.exit_code, 0);
  for (const int r : {0, 1}) {
    ASSERT_TRUE(outcome.ranks.contains(r)) << outcome.output;
    EXPECT_THAT(outcome.ranks.at(r), AllOf(HasSubstr("all_reduce(sum, float32, 5000 elements, bucket 7), operation "),
                                           HasSubstr("rank 3 failed"), HasSubstr("is gone: connection lost")));
  }
}

// Open MPI by itself waits for ever then.
TEST(MpiOnTwoHosts, WithADeadLinkTheRanksOfBothHostsEnd) {
  const std::string bed = DTRAIN_SOURCE_DIR "/tests/harness/two_hosts.sh";
  const MpirunOutcome outcome =
      test::run_command("timeout -k 5 120 " + bed + " with unshaped " + DTRAIN_SOURCE_DIR "/tests/comm/link_cut.sh " +
                        bed + " mpi " + DTRAIN_BINARY_DIR "/tests/mpi_rank_program");
  if (outcome.exit_code == kSkipped) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("GONE"));
  ASSERT_TRUE(outcome.ranks.contains(0)) << outcome.output;
  EXPECT_THAT(outcome.ranks.at(0),
              AllOf(HasSubstr("all_reduce(sum, float32, 5000 elements), operation "),
                    HasSubstr("timed out after 1.50 s; missing: rank 1 "), HasSubstr("stopped: no heartbeats")));
}

// Every rank's error when the last of three does another thing than the others: operation 1, and both by name.
struct Difference {
  const char* name;
  const char* most;
  const char* last;
};

void PrintTo(const Difference& difference, std::ostream* out) {
  *out << difference.name;
}

class MpiDifference : public testing::TestWithParam<Difference> {};

TEST_P(MpiDifference, BothOperationsAreNamedOnEveryRank) {
  const auto& [name, most, last] = GetParam();
  const MpirunOutcome outcome = test::run_ranks_with_mpirun(3, "mpi misuse " + std::string(name));
  EXPECT_EQ(outcome.exit_code, 1) << "the job does not end well";
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(outcome.ranks.contains(r)) << "rank " << r << ": " << outcome.output;
    EXPECT_THAT(outcome.ranks.at(r), AllOf(HasSubstr("operation 1"), HasSubstr("rank 0 " + std::string(most)),
                                           HasSubstr("rank 2 " + std::string(last))));
  }
}

constexpr const char* kSum = "all_reduce(sum, float32, 5000 elements)";
INSTANTIATE_TEST_SUITE_P(
    Kinds, MpiDifference,
    testing::Values(Difference{"operation", kSum, "barrier"},
                    Difference{"kind", kSum, "reduce_parts(sum, float32, 5000 elements)"},
                    Difference{"size", kSum, "all_reduce(sum, float32, 4999 elements)"},
                    Difference{"large-size", "all_reduce(sum, float32, 200000 elements)",
                               "all_reduce(sum, float32, 199999 elements)"},
                    Difference{"type", kSum, "all_reduce(sum, int32, 5000 elements)"},
                    Difference{"reduction", kSum, "all_reduce(max, float32, 5000 elements)"},
                    Difference{"scale", kSum, "all_reduce(sum, float32, 5000 elements, scaled by 0.5)"},
                    Difference{"bucket", kSum, "all_reduce(sum, float32, 5000 elements, bucket 4)"},
                    Difference{"root", "broadcast(float32, 10 elements from rank 0)",
                               "broadcast(float32, 10 elements from rank 1)"},
                    Difference{"order", "all_reduce(sum, float32, 5000 elements, bucket 0)",
                               "all_reduce(sum, float32, 5000 elements, bucket 1)"},
                    Difference{"allocation", "allocate(1000 bytes)", "allocate(2000 bytes)"}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '-');
      return name;
    });

MpirunOutcome misuse(const std::string& name) {
  MpirunOutcome outcome = test::run_ranks_with_mpirun(3, "mpi misuse " + name);
  EXPECT_NE(outcome.exit_code, 0) << "the job does not end well";
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(outcome.ranks.contains(r)) << "rank " << r << ": " << outcome.output;
  }
  return outcome;
}

constexpr const char* kBucket = "all_reduce(sum, float32, 5000 elements, bucket 7), operation 1, ";

TEST(MpiMisuse, ARankThatNeverComesIsNamedAtTheDeadline) {
  for (const auto& [rank, text] : misuse("never").ranks) {
    EXPECT_THAT(text, AllOf(HasSubstr(kBucket), HasSubstr("timed out after 1.50 s"),
                            HasSubstr("missing: rank 2 has not entered it (late: its heartbeats come)")))
        << rank;
  }
}

TEST(MpiMisuse, AStoppedRankIsToldFromALateOne) {
  const MpirunOutcome outcome = misuse("stopped");
  for (const int r : {0, 1}) {
    EXPECT_THAT(outcome.ranks.at(r), AllOf(HasSubstr(kBucket), HasSubstr("timed out after 1.50 s"),
                                           HasSubstr("missing: rank 2 has not entered it (stopped: no heartbeats)")));
  }
}

TEST(MpiMisuse, AKilledRankIsNamed) {
  const MpirunOutcome outcome = misuse("killed");
  for (const int r : {0, 1}) {
    EXPECT_THAT(outcome.ranks.at(r), AllOf(HasSubstr(", was stopped after "), HasSubstr("rank 2 failed"),
                                           HasSubstr("is gone: connection lost"), Not(HasSubstr("timed out"))));
  }
}

TEST(MpiMisuse, TheCauseOfTheFailingRankReachesAll) {
  const MpirunOutcome outcome = misuse("fails");
  for (const int r : {0, 1}) EXPECT_THAT(outcome.ranks.at(r), HasSubstr("rank 2 failed: loss is NaN"));
}

TEST(MpiMisuse, AbortFromAnotherThreadWakesAll) {
  const MpirunOutcome outcome = misuse("aborted");
  EXPECT_THAT(outcome.ranks.at(0), AllOf(HasSubstr("barrier, operation 1, was stopped after"),
                                         HasSubstr("the disk is full"), Not(HasSubstr("later"))));
  for (const int r : {1, 2}) {
    EXPECT_THAT(outcome.ranks.at(r), AllOf(HasSubstr("the disk is full"), Not(HasSubstr("later"))));
  }
}

TEST(MpiMisuse, TheCauseReachesTheOtherCommunicatorsOfTheProcess) {
  const MpirunOutcome outcome = misuse("another-fails");
  for (const auto& [rank, text] : outcome.ranks) {
    // A rank that the cause reaches between its two barriers is told it without an operation.
    EXPECT_THAT(text, HasSubstr("the disk is full")) << rank;
  }
}

TEST(MpiMisuse, LaterCallsFailWithTheSameCause) {
  const MpirunOutcome outcome = misuse("later-calls");
  for (const auto& [rank, text] : outcome.ranks) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0 all_reduce(sum, float32, 8000 elements)"), HasSubstr("9000 elements")))
        << rank;
  }
}

TEST(MpiMisuse, AnOpenGroupIsNotWaitedFor) {
  const MpirunOutcome outcome = misuse("group");
  for (const auto& [rank, text] : outcome.ranks)
    EXPECT_THAT(text, HasSubstr("barrier belongs to a group that is open"));
}

TEST(Mpi, AProcessByItselfIsAJobOfOne) {
  expect_all_ok(test::run_command("timeout 60 " DTRAIN_BINARY_DIR "/tests/mpi_rank_program mpi misuse nothing"), 1);
}

}  // namespace
}  // namespace dtrain::comm
