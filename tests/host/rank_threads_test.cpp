#include "dtrain/host/rank_threads.h"

#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace dtrain::host {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr int kOfLibrary = 16;

// A process that may use all of 8 cores with two logical CPUs each.
ProcessCores unbound() {
  return {.cores = 8, .cpus = 16, .cpus_of_parent = 16, .cpus_of_group = 16, .time_of_group = 16};
}

// One that mpirun or srun has bound to some of them.
ProcessCores bound_to(int cores) {
  ProcessCores mine = unbound();
  mine.cores = cores;
  mine.cpus = 2 * cores;
  return mine;
}

TEST(RankThreads, AreOneForEachCoreUnlessACgroupGrantsLess) {
  EXPECT_EQ(threads_granted(16, 16, 2), std::nullopt);
  EXPECT_EQ(threads_granted(15.995, 16, 2), std::nullopt) << "rounded";
  EXPECT_EQ(threads_granted(10, 16, 2), 5);
  EXPECT_EQ(threads_granted(10, 16, 3), 3);
  EXPECT_EQ(threads_granted(2.999, 16, 3), 1);
  EXPECT_EQ(threads_granted(0.5, 16, 3), 1) << "at least one";
  EXPECT_EQ(threads_on(4, 8, std::nullopt), (RankThreads{4, 8}));
  EXPECT_EQ(threads_on(4, 8, 3), (RankThreads{3, 3}));
  EXPECT_EQ(threads_on(4, 8, 5), (RankThreads{4, 4})) << "where time is limited, siblings are not tried";
  EXPECT_EQ(threads_on(0, 0, std::nullopt).threads, 1);
}

TEST(RankThreads, AreThoseOfTheRankWithTheFewest) {
  const std::vector<RankThreads> ranks{{4, 8}, {3, 6}, {0, 0}, {5, 5}};
  EXPECT_EQ(threads_of_all(ranks), (RankThreads{3, 5})) << "a rank of another host does not count";
  EXPECT_EQ(threads_of_all({}), RankThreads());
}

TEST(RankThreads, WithoutALauncherRanksDivideTheCores) {
  ProcessCores mine = unbound();
  EXPECT_EQ(threads_of_process(mine, 1), 8);
  EXPECT_EQ(threads_of_process(mine, 2), 4);
  EXPECT_EQ(threads_of_process(mine, 3), 2);
  EXPECT_EQ(threads_of_process(mine, 9), 1);
  mine.time_of_group = 6;
  EXPECT_EQ(threads_of_process(mine, 1), 6);
  EXPECT_EQ(threads_of_process(mine, 2), 3);
  EXPECT_EQ(threads_of_process(mine, 3), 2);
  EXPECT_EQ(threads_of_process(mine, 4), 1);
  mine.time_of_group = 0.5;
  EXPECT_EQ(threads_of_process(mine, 1), 1) << "at least one";
}

TEST(RankThreads, WithoutALauncherABoundRankHasAThreadForEachOfItsCores) {
  for (const int cores : {1, 2, 3, 5}) {
    for (const int ranks : {1, 2, 3}) {
      if (cores * ranks > 8) continue;
      EXPECT_EQ(threads_of_process(bound_to(cores), ranks), cores) << ranks << " ranks";
    }
  }
}

// `mpirun --bind-to socket` with several ranks on each, for example.
TEST(RankThreads, BoundRanksThatShareCoresDivideThem) {
  EXPECT_EQ(threads_of_process(bound_to(4), 4), 2);
  EXPECT_EQ(threads_of_process(bound_to(4), 3), 2);
  EXPECT_EQ(threads_of_process(bound_to(5), 2), 4);
  EXPECT_EQ(threads_of_process(bound_to(3), 9), 1);
  ProcessCores mine = bound_to(4);  // without siblings
  mine.cpus = 4;
  mine.cpus_of_parent = mine.cpus_of_group = 8;
  mine.time_of_group = 8;
  EXPECT_EQ(threads_of_process(mine, 2), 4);
  EXPECT_EQ(threads_of_process(mine, 4), 2);
}

TEST(RankThreads, OfABoundRankAreAtMostItsShareOfTheTime) {
  ProcessCores mine = bound_to(3);
  mine.time_of_group = 7;
  EXPECT_EQ(threads_of_process(mine, 1), 3);
  EXPECT_EQ(threads_of_process(mine, 2), 3);
  EXPECT_EQ(threads_of_process(mine, 3), 2);
  mine.time_of_group = 2.5;
  EXPECT_EQ(threads_of_process(mine, 3), 1) << "at least one";
}

// srun's process, for example.
TEST(RankThreads, WhereTheParentIsBoundLikewiseRanksDivideItsCoresUnlessThereAreFewerThanRanks) {
  ProcessCores mine = bound_to(2);
  mine.cpus_of_parent = mine.cpus;
  EXPECT_EQ(threads_of_process(mine, 1), 2);
  EXPECT_EQ(threads_of_process(mine, 2), 1);
  EXPECT_EQ(threads_of_process(mine, 3), 2) << "the ranks do not all run on these two";
  mine.cpus_of_group = mine.cpus;
  EXPECT_EQ(threads_of_process(mine, 3), 1) << "a container has no other cores";
  mine.cpus_of_parent = 0;
  EXPECT_EQ(threads_of_process(mine, 2), 1) << "the parent is not known";
}

TEST(RankThreads, OfAProcessThatStartsThemDivideItsCoresAlsoWhereItIsBound) {
  EXPECT_EQ(threads_of_children(unbound(), 2), 4);
  EXPECT_EQ(threads_of_children(bound_to(5), 1), 5);
  EXPECT_EQ(threads_of_children(bound_to(5), 2), 2);
  EXPECT_EQ(threads_of_children(bound_to(2), 3), 1);
  ProcessCores mine = bound_to(5);
  mine.time_of_group = 3;
  EXPECT_EQ(threads_of_children(mine, 1), 3);
  EXPECT_EQ(threads_of_children(mine, 2), 1);
}

TEST(RankThreads, ALibrarysOwnNumberIsReplacedUnlessSomebodyHasChosenIt) {
  EXPECT_EQ(threads_to_set(kOfLibrary, {}, unbound(), 2), 4);
  EXPECT_EQ(threads_to_set(8, {}, unbound(), 2), 4) << "MKL's default";
  EXPECT_EQ(threads_to_set(5, {}, unbound(), 2), std::nullopt) << "the user has called the library";
  EXPECT_EQ(threads_to_set(kOfLibrary, {{"OMP_NUM_THREADS", "16"}}, unbound(), 2), std::nullopt);
}

TEST(RankThreads, OfTheUserCount) {
  EXPECT_EQ(threads_of_user({}), std::nullopt);
  EXPECT_EQ(threads_of_user({{"OMP_NUM_THREADS", "7"}}), 7);
  EXPECT_EQ(threads_of_user({{"OMP_NUM_THREADS", "7,2"}}), 7) << "of the outermost level";
  for (const char* none : {"", "many", "0", "-3"}) EXPECT_EQ(threads_of_user({{"OMP_NUM_THREADS", none}}), 0) << none;
}

TEST(RankThreads, AreToldByVariablesThatLeaveTheUsersAlone) {
  const Variables wait{{"OMP_WAIT_POLICY", "passive"}, {"GOMP_SPINCOUNT", "10000"}};
  const auto with = [&](Variables variables) {
    variables.insert(wait.begin(), wait.end());
    return variables;
  };
  EXPECT_EQ(thread_variables({{"PATH", "/bin"}}, {}, 4), with({{"OMP_NUM_THREADS", "4"}}));
  EXPECT_EQ(thread_variables({}, {}, 0), wait) << "not known";
  EXPECT_EQ(thread_variables({{"OMP_NUM_THREADS", "7"}}, {}, 4), wait) << "the rank inherits the number";
  EXPECT_EQ(thread_variables({{"OMP_NUM_THREADS", "7"}}, {{"OMP_NUM_THREADS", "2"}}, 4),
            with({{"OMP_NUM_THREADS", "2"}}));
  EXPECT_EQ(thread_variables({}, {{"OMP_WAIT_POLICY", "active"}, {"COLOUR", "red"}}, 4),
            (Variables{{"OMP_NUM_THREADS", "4"}, {"OMP_WAIT_POLICY", "active"}, {"COLOUR", "red"}}));
}

TEST(RankThreads, WaitAsTheUserSays) {
  EXPECT_EQ(wait_of_threads({}), (Variables{{"OMP_WAIT_POLICY", "passive"}, {"GOMP_SPINCOUNT", "10000"}}));
  EXPECT_EQ(wait_of_threads({{"GOMP_SPINCOUNT", "5"}}), (Variables{{"OMP_WAIT_POLICY", "passive"}}));
  EXPECT_TRUE(wait_of_threads({{"OMP_WAIT_POLICY", "active"}}).empty());
}

TEST(RankThreads, OfThisProcess) {
  const auto cores = static_cast<int>(usable_cores().size());
  EXPECT_EQ(threads_of_process(process_cores(), 1), cores);
  EXPECT_EQ(threads_of_process(process_cores(), cores), 1);
  if (cores < 2) GTEST_SKIP() << "with one core nothing can be bound to fewer";
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(usable_cores().front().cpus.front(), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(process_cores().cpus, 1);
    EXPECT_EQ(threads_of_process(process_cores(), 1), 1);
    EXPECT_EQ(threads_of_process(process_cores(), 2), 1);
  }).join();
}

}  // namespace
}  // namespace dtrain::host
