// The store by which ranks that no launcher connects meet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "dtrain/base/error.h"
#include "dtrain/comm/gloo.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using testing::HasSubstr;

constexpr const char* kAddress = "127.0.0.1";

TEST(GlooStore, OtherRanksGetWhatRank0HasSet) {
  // A free port, as far as that can be known.
  const std::uint16_t port = static_cast<std::uint16_t>(20'000 + std::random_device()() % 10'000);
  std::promise<void> listens;
  auto listening = listens.get_future().share();
  test::run_ranks(3, [&](int rank) {
    if (rank != 0) listening.wait();
    std::unique_ptr<RendezvousStore> store;
    try {
      store = RendezvousStore::open({kAddress, port, rank == 0, std::chrono::milliseconds(10'000)});
    } catch (...) {
      if (rank == 0) listens.set_value();
      throw;
    }
    if (rank == 0) {
      listens.set_value();
      store->set("contact", std::string("an address\0and more", 19));
    }
    EXPECT_EQ(store->get("contact"), std::string("an address\0and more", 19));
    if (rank == 0) {
      EXPECT_EQ(store->get("left/1"), "1");
      EXPECT_EQ(store->get("left/2"), "2");
    } else {
      store->set("left/" + std::to_string(rank), std::to_string(rank));
    }
  });
}

TEST(GlooStore, WhatCannotBeReachedIsNamedAtTheDeadline) {
  try {
    (void)RendezvousStore::open({kAddress, 1, false, std::chrono::milliseconds(300)});
    FAIL() << "a store at port 1";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot reach rank 0 at 127.0.0.1:1: "));
  }
}

}  // namespace
}  // namespace dtrain::comm
