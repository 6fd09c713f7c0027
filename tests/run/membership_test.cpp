// Generations of ranks that follow each other in processes that live on. The ranks are threads of this process.
#include <atomic>
#include <future>

#include <gmock/gmock.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous_store.h"
#include "membership.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

class Generations : public ::testing::Test {
 protected:
  // Runs `rank` for each of so many ranks at once, and fails the test with what any of them throws.
  static void on_ranks(int count, const std::function<void(int rank)>& rank) {
    std::vector<std::future<void>> ended;
    for (int i = 0; i < count; ++i) ended.push_back(std::async(std::launch::async, rank, i));
    for (auto& one : ended) EXPECT_NO_THROW(one.get());
  }

  void join(Membership& membership, int generation, int rank, int size) const {
    comm::ControlOptions options{.world = {.rank = rank, .size = size, .local_rank = rank, .local_size = size},
                                 .generation = static_cast<std::uint32_t>(generation),
                                 .timeout = kHangs,
                                 .log = make_null_logger()};
    if (size == 1) {
      connect_alone(membership, options);
    } else {
      connect_by_file(membership, options, file("generation-" + std::to_string(generation)));
    }
    membership.make_communicator(comm::ShmBackend(), {.timeout = kHangs, .log = make_null_logger()});
  }

  fs::path file(const std::string& name) const { return folder_.path() / name; }

  static float sum(Membership& membership, float value) {
    membership.communicator().all_reduce(&value, 1, comm::DataType::kFloat32).wait();
    return value;
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(Generations, TheSameRanksGoOnAsTheNextGeneration) {
  on_ranks(2, [&](int rank) {
    Membership membership;
    EXPECT_FALSE(membership.is_connected());
    join(membership, 1, rank, 2);
    EXPECT_EQ(membership.generation(), 1u);
    EXPECT_EQ(sum(membership, 1.0f + static_cast<float>(rank)), 3.0f);
    membership.finish();

    join(membership, 2, 1 - rank, 2);  // with their numbers swapped
    EXPECT_EQ(membership.generation(), 2u);
    EXPECT_EQ(membership.world().rank, 1 - rank);
    EXPECT_EQ(membership.communicator().generation(), 2u);
    EXPECT_EQ(sum(membership, 1.0f + static_cast<float>(rank)), 3.0f);
    membership.finish();
  });
}

TEST_F(Generations, FewerRanksGoOnAfterOneIsLost) {
  std::promise<void> all_have_summed;
  std::shared_future<void> summed = all_have_summed.get_future().share();
  std::promise<void> rank_0_has_summed;
  std::atomic<int> sums{0};
  on_ranks(3, [&](int rank) {
    Membership membership;
    std::atomic<int> failures{0};
    membership.on_failure([&](const comm::RankFailure&) { ++failures; });
    join(membership, 1, rank, 3);
    EXPECT_EQ(sum(membership, 1), 3.0f);
    if (++sums == 3) all_have_summed.set_value();
    ASSERT_EQ(summed.wait_for(kHangs / 2), std::future_status::ready);
    if (rank == 2) return;  // leaves without finish(): for the others it is lost
    EXPECT_THROW(sum(membership, 1), CommError);
    EXPECT_TRUE(eventually([&] { return failures == 1; }));

    join(membership, 2, rank, 2);
    EXPECT_EQ(sum(membership, 1), 2.0f);
    EXPECT_EQ(failures, 1);
    if (rank == 1) {
      rank_0_has_summed.get_future().wait();
      return membership.control().fail({.rank = 1, .cause = "no more"});
    }
    rank_0_has_summed.set_value();
    EXPECT_TRUE(eventually([&] { return failures == 2; })) << "the callback serves this generation as well";
    EXPECT_EQ(membership.control().failure()->cause, "no more");

    join(membership, 3, 0, 1);
    EXPECT_EQ(membership.world().size, 1);
    EXPECT_EQ(sum(membership, 1), 1.0f);
  });
}

TEST_F(Generations, ARankOfAnotherGenerationIsRefused) {
  on_ranks(2, [&](int rank) {
    Membership membership;
    comm::ControlOptions options{.world = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2},
                                 .generation = rank == 0 ? 1u : 2u,
                                 .timeout = 1s,
                                 .log = make_null_logger()};
    EXPECT_THROW(connect_by_file(membership, options, file("refused")), CommError);
  });
}

// Rank 0 serves the store at the address that MASTER_ADDR means, alone, and only until all ranks have connected.
TEST(MembershipByStore, TheStoreListensAtMasterAddrUntilAllHaveConnected) {
  RankEnvironment environment;
  environment.job = "a job";
  environment.master =
      MasterAddress{.name = "127.0.0.1", .port = static_cast<std::uint16_t>(20'000 + ::getpid() % 10'000)};
  const auto join = [&](int rank) {
    Membership membership;
    connect_by_store(membership,
                     {.world = {.rank = rank, .size = 2, .local_rank = 0, .local_size = 1},
                      .timeout = kHangs,
                      .log = make_null_logger()},
                     environment);
    membership.finish();
  };
  const auto open_at = [&](const char* address, std::chrono::milliseconds timeout) {
    return comm::RendezvousStore::open({.address = address, .port = environment.master->port, .timeout = timeout});
  };
  auto rank_0 = std::async(std::launch::async, join, 0);
  {
    const auto stranger = open_at("127.0.0.1", kHangs);
    EXPECT_THAT(stranger->get("dtrain/a job"), ::testing::HasSubstr("127.0.0.1"));
    EXPECT_THROW((void)open_at("127.0.0.2", std::chrono::milliseconds(200)), CommError);
  }
  EXPECT_NO_THROW(join(1));
  EXPECT_NO_THROW(rank_0.get());
  EXPECT_THROW((void)open_at("127.0.0.1", std::chrono::milliseconds(200)), CommError);
}

// With a secret of a file, the store has none, and a rank without the file is told so.
TEST(MembershipByStore, WithASecretOfAFileTheStoreCarriesAddressesAlone) {
  RankEnvironment environment;
  environment.job = "a job with a file";
  environment.master =
      MasterAddress{.name = "127.0.0.1", .port = static_cast<std::uint16_t>(30'000 + ::getpid() % 2'000)};
  const auto join = [&](int rank, const std::string& secret) {
    Membership membership;
    connect_by_store(membership,
                     {.world = {.rank = rank, .size = 2, .local_rank = 0, .local_size = 1},
                      .secret = secret,
                      .timeout = kHangs,
                      .log = make_null_logger()},
                     environment);
    membership.finish();
  };
  const std::string secret = "a secret of a file";
  auto rank_0 = std::async(std::launch::async, join, 0, secret);
  {
    const auto reader =
        comm::RendezvousStore::open({.address = "127.0.0.1", .port = environment.master->port, .timeout = kHangs});
    EXPECT_THAT(reader->get("dtrain/a job with a file"), ::testing::HasSubstr("\"secret\":\"\""));
  }
  try {
    join(1, "");
    ADD_FAILURE() << "it has no secret";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0 has the run's secret from DTRAIN_RUN_SECRET_FILE"));
  }
  EXPECT_NO_THROW(join(1, secret));
  EXPECT_NO_THROW(rank_0.get());
}

TEST_F(Generations, TheControlPlaneOfOneHostMayHaveTls) {
  on_ranks(2, [&](int rank) {
    Membership membership;
    const comm::ControlOptions options{.world = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2},
                                       .security = comm::Security::kTls,
                                       .timeout = kHangs,
                                       .log = make_null_logger()};
    connect_by_file(membership, options, file("tls"));
    membership.make_communicator(comm::ShmBackend(), {.timeout = kHangs, .log = make_null_logger()});
    EXPECT_EQ(sum(membership, 1), 2.0f);
    membership.finish();
  });
}

}  // namespace
}  // namespace dtrain::rank
