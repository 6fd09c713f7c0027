// Mailboxes: messages in any order against a model, exchanges, and what happens when ranks do not do the same, do not
// come, or die. Ranks are threads or processes of one host, or threads on pretended hosts, which TCP connects.
#include "dtrain/comm/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/mpi.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Bytes = std::vector<std::byte>;
using Body = std::function<void(ControlPlane&, Mailbox&)>;

BackendParts parts_of(ControlPlane& control, const CommunicatorOptions& options) {
  BackendParts parts{.control = control, .address = "127.0.0.1", .options = options};
  parts.members.resize(static_cast<std::size_t>(control.world().size));
  std::iota(parts.members.begin(), parts.members.end(), 0);
  return parts;
}

// "aab": ranks 0 and 1 on one host, rank 2 on another.
TestWorld world_on(const std::string& placing) {
  TestWorld world(static_cast<int>(placing.size()));
  for (const char host : placing) world.hosts.emplace_back(1, host);
  return world;
}

void run_ranks_on(const std::string& placing, const Body& body, const CommunicatorOptions& options) {
  test::run_control_ranks(world_on(placing), [&](ControlPlane& control) {
    const auto mailbox = make_mailbox(parts_of(control, options));
    body(control, *mailbox);
    control.barrier("all are done with their mailbox");
  });
}

void run_ranks_on(const std::string& placing, const Body& body) {
  run_ranks_on(placing, body, TestWorld(1).communicator_options());
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("wrong: " + what);
}

std::byte byte_at(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>((seed * 0x9e3779b97f4a7c15ULL >> 32) + i * 31 + (i >> 12) * 7);
}

Bytes pattern(std::uint64_t seed, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_at(seed, i);
  return data;
}

// One message of the model. The plan of a round follows from its seed, so every rank knows all messages.
struct Planned {
  int from = 0;
  int to = 0;
  Channel channel;
  std::size_t bytes = 0;
  std::uint64_t seed = 0;
};

std::size_t random_size(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0:
      return 0;
    case 1:
      return kEagerMost + random() % 3 - 1;
    case 2:
      return random() % 3'000'000;
    case 3:
      return random() % 200'000;
    default:
      return random() % 5'000;
  }
}

std::vector<Planned> plan_round(std::uint64_t seed, int ranks) {
  std::mt19937_64 random(seed);
  std::vector<Planned> plan(random() % 60);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    plan[i] = {static_cast<int>(random() % static_cast<unsigned>(ranks)),
               static_cast<int>(random() % static_cast<unsigned>(ranks)),
               {static_cast<std::uint32_t>(random() % 2), static_cast<std::int32_t>(random() % 3) - 1},
               random_size(random),
               seed * 1000 + i};
  }
  return plan;
}

struct Flying {
  Planned planned;
  bool sends = false;
  Bytes data;
  Work work;
};

// Issues this rank's part of the plan, streams interleaved at random, and now and then drives or tests.
std::vector<Flying> issue(Mailbox& mailbox, const std::vector<Planned>& plan, std::mt19937_64& random) {
  std::map<std::tuple<bool, int, Channel>, std::vector<Planned>> streams;
  std::size_t left = 0;
  for (const Planned& one : plan) {
    if (one.from == mailbox.rank()) ++left, streams[{true, one.to, one.channel}].push_back(one);
    if (one.to == mailbox.rank()) ++left, streams[{false, one.from, one.channel}].push_back(one);
  }
  std::vector<Flying> all;
  all.reserve(left);
  while (!streams.empty()) {
    const auto stream = std::next(streams.begin(), static_cast<std::ptrdiff_t>(random() % streams.size()));
    const auto [sends, peer, channel] = stream->first;
    Flying& one = all.emplace_back(Flying{stream->second.front(), sends, {}, {}});
    stream->second.erase(stream->second.begin());
    if (stream->second.empty()) streams.erase(stream);
    one.data = sends ? pattern(one.planned.seed, one.planned.bytes) : Bytes(one.planned.bytes);
    one.work = sends ? mailbox.send(one.data.data(), one.data.size(), peer, channel)
                     : mailbox.receive(one.data.data(), one.data.size(), peer, channel);
    if (random() % 4 == 0) mailbox.progress();
    if (random() % 4 == 0) all[random() % all.size()].work.test();
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
  }
  return all;
}

void play(Mailbox& mailbox, std::uint64_t seed, int rounds) {
  std::mt19937_64 random(seed * 31 + static_cast<std::uint64_t>(mailbox.rank()));
  for (int round = 0; round < rounds; ++round) {
    const auto plan = plan_round(seed * 100 + static_cast<std::uint64_t>(round), mailbox.world_size());
    std::vector<Flying> all = issue(mailbox, plan, random);
    std::shuffle(all.begin(), all.end(), random);
    for (Flying& one : all) {
      one.work.wait();
      const WorkTiming times = one.work.timing();
      require(times.enqueued <= times.started && times.started <= times.ended, "the order of times");
      require(one.work.bytes() == one.planned.bytes, "the size of a work");
      require(one.data == pattern(one.planned.seed, one.planned.bytes),
              "the bytes from rank " + std::to_string(one.planned.from) + " to " + std::to_string(one.planned.to));
      if (!one.sends) require(one.work.source() == one.planned.from, "the source");
    }
  }
}

class MailboxModel : public testing::TestWithParam<std::string> {};

TEST_P(MailboxModel, IsFollowed) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    run_ranks_on(GetParam(), [&](ControlPlane&, Mailbox& mailbox) { play(mailbox, seed, 8); });
  }
}

INSTANTIATE_TEST_SUITE_P(Placed, MailboxModel, testing::Values("a", "aa", "aaa", "aaaa", "ab", "abab", "aab"),
                         [](const auto& test) { return test.param; });

void expect_success(const std::vector<test::RankOutcome>& outcomes) {
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.status.code, 0) << outcome.error;
}

TEST(MailboxProcesses, FollowTheModel) {
  for (const int ranks : {2, 4}) {
    const TestWorld world(ranks);
    expect_success(test::run_processes(world, [&](ControlPlane& control, Communicator& comm) {
      const auto mailbox = make_mailbox(parts_of(control, world.communicator_options()));
      play(*mailbox, 77, 8);
      comm.barrier().wait();
    }));
  }
}

// Each rank gets messages of all others with one receive for any of them: those of one sender in their order.
void receive_from_any(Mailbox& mailbox, std::size_t bytes) {
  constexpr std::uint64_t kEach = 40;
  const Channel channel{9, 5};
  const auto others = static_cast<std::size_t>(mailbox.world_size() - 1);
  std::vector<Bytes> out, in;
  std::vector<Work> sends, receives;
  for (std::uint64_t i = 0; i < kEach * others; ++i) {
    in.emplace_back(bytes);
    receives.push_back(mailbox.receive(in.back().data(), bytes, kAnyRank, channel));
  }
  for (std::uint64_t i = 0; i < kEach; ++i) {
    for (int to = 0; to < mailbox.world_size(); ++to) {
      if (to == mailbox.rank()) continue;
      out.push_back(pattern(static_cast<std::uint64_t>(mailbox.rank()) * kEach + i, bytes));
      sends.push_back(mailbox.send(out.back().data(), bytes, to, channel));
    }
  }
  for (Work& work : receives) work.wait();
  for (Work& work : sends) work.wait();
  std::map<int, std::uint64_t> next;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const int from = receives[i].source();
    require(from >= 0 && from != mailbox.rank(), "a source");
    require(in[i] == pattern(static_cast<std::uint64_t>(from) * kEach + next[from]++, bytes), "the order of a sender");
  }
}

TEST(Mailbox, AnyRankMayBeTheSource) {
  for (const std::string placing : {"aaa", "aab"}) {
    for (const std::size_t bytes : {100u, 60'000u}) {
      run_ranks_on(placing, [&](ControlPlane&, Mailbox& mailbox) { receive_from_any(mailbox, bytes); });
    }
  }
}

// The bytes that rank `from` has for rank `to`; some blocks are empty, some are large.
std::size_t block_bytes(int from, int to) {
  return static_cast<std::size_t>((from * 7 + to * 3) % 4) * 13'001;
}

Bytes block(int from, int to) {
  return pattern(static_cast<std::uint64_t>(from * 100 + to), block_bytes(from, to));
}

struct Blocks {
  std::vector<Bytes> memory;
  std::vector<Block> out;
  std::vector<ConstBlock> in;
  void add(Bytes data) {
    memory.push_back(std::move(data));
    out.push_back({memory.back().data(), memory.back().size()});
    in.push_back({memory.back().data(), memory.back().size()});
  }
};

void exchange_all(Mailbox& mailbox, const std::vector<int>& members, std::uint32_t group) {
  const int me = mailbox.rank();
  for (int round = 0; round < 3; ++round) {
    const int root = round % static_cast<int>(members.size());
    const int root_rank = members[static_cast<std::size_t>(root)];
    Blocks given, taken, gathered, scattered;
    for (const int other : members) {
      given.add(block(me, other));
      taken.add(Bytes(block_bytes(other, me)));
      gathered.add(Bytes(me == root_rank ? block_bytes(other, me) : 0));
      scattered.add(block(root_rank, other));
    }
    Bytes own = block(me, root_rank);
    Bytes mine(block_bytes(root_rank, me));
    // All three are under way at once.
    Work all = all_to_all(mailbox, members, given.in, taken.out, {group, 1});
    Work up = gather(mailbox, members, {own.data(), own.size()}, gathered.out, root, {group, 2});
    Work down = scatter(mailbox, members, scattered.in, {mine.data(), mine.size()}, root, {group, 3});
    down.wait();
    up.wait();
    all.wait();
    require(all.test() && all.missing().empty(), "an exchange that is over");
    for (std::size_t i = 0; i < members.size(); ++i) {
      require(taken.memory[i] == block(members[i], me), "all_to_all");
      if (me == root_rank) require(gathered.memory[i] == block(members[i], me), "gather");
    }
    require(mine == block(root_rank, me), "scatter");
  }
}

TEST(MailboxExchanges, GiveEachBlockToItsRank) {
  for (const std::string placing : {"a", "aa", "aaa", "aaaa", "aab", "abab"}) {
    SCOPED_TRACE(placing);
    run_ranks_on(placing, [&](ControlPlane&, Mailbox& mailbox) {
      std::vector<int> members(placing.size());
      std::iota(members.rbegin(), members.rend(), 0);  // the highest rank first
      exchange_all(mailbox, members, 1);
      if (mailbox.rank() < 2 && members.size() > 2) exchange_all(mailbox, {1, 0}, 2);
      exchange_all(mailbox, members, 3);
    });
  }
}

TEST(MailboxExchanges, RefuseWhatIsNoGroup) {
  run_ranks_on("a", [](ControlPlane&, Mailbox& mailbox) {
    const std::vector<int> members{0};
    const std::vector<int> strangers{1};
    EXPECT_THROW(gather(mailbox, strangers, {}, {}, 0, {}), CommError);
    EXPECT_THROW(gather(mailbox, members, {}, {}, 1, {}), CommError);
    EXPECT_THROW(all_to_all(mailbox, members, {}, {}, {}), CommError);
    EXPECT_THROW(mailbox.send(nullptr, 0, 1, {}), CommError);
    EXPECT_THROW(mailbox.receive(nullptr, 0, -2, {}), CommError);
    EXPECT_FALSE(mailbox.outstanding());
  });
}

// Every rank sends to all before anyone receives, and waits in an order of its own.
TEST(Mailbox, LargeMessagesInBothDirectionsDoNotBlockEachOther) {
  for (const std::string placing : {"aaa", "abc"}) {
    run_ranks_on(placing, [](ControlPlane&, Mailbox& mailbox) {
      constexpr std::size_t kBytes = 2'000'003;
      std::vector<Bytes> out, in;
      std::vector<Work> works;
      for (int to = 0; to < 3; ++to) {
        out.push_back(pattern(static_cast<std::uint64_t>(mailbox.rank() * 3 + to), kBytes));
        works.push_back(mailbox.send(out.back().data(), kBytes, to, {0, to}));
      }
      for (int from = 0; from < 3; ++from) {
        in.emplace_back(kBytes);
        works.push_back(mailbox.receive(in.back().data(), kBytes, from, {0, mailbox.rank()}));
      }
      std::rotate(works.begin(), works.begin() + mailbox.rank(), works.end());
      for (Work& work : works) work.wait();
      for (int from = 0; from < 3; ++from) {
        require(in[static_cast<std::size_t>(from)] ==
                    pattern(static_cast<std::uint64_t>(from * 3 + mailbox.rank()), kBytes),
                "a large message");
      }
    });
  }
}

// Messages that nobody has asked for take bounded memory at the receiver; one of another channel gets past them.
TEST(Mailbox, AFloodIsHeldBackAndBlocksNoOtherChannel) {
  for (const std::string placing : {"aa", "ab"}) {
    SCOPED_TRACE(placing);
    run_ranks_on(placing, [](ControlPlane& control, Mailbox& mailbox) {
      constexpr std::size_t kMessages = 5'000;
      constexpr std::size_t kBytes = 1024;
      const int peer = 1 - mailbox.rank();
      const Bytes out = pattern(static_cast<std::uint64_t>(mailbox.rank()), kBytes);
      std::vector<Work> sends;
      for (std::size_t i = 0; i < kMessages; ++i) sends.push_back(mailbox.send(out.data(), kBytes, peer, {0, 1}));
      Work last_sent = mailbox.send(out.data(), kBytes, peer, {0, 2});
      Bytes in(kBytes);
      mailbox.receive(in.data(), kBytes, peer, {0, 2}).wait();
      last_sent.wait();
      std::size_t complete = 0;
      for (Work& work : sends) complete += work.test() ? 1 : 0;
      EXPECT_LE(complete, kKeptMost / (kBytes + kKeptOverhead));
      EXPECT_TRUE(mailbox.outstanding());
      control.barrier("counted");
      for (std::size_t i = 0; i < kMessages; ++i) {
        in.assign(kBytes, {});
        mailbox.receive(in.data(), kBytes, peer, {0, 1}).wait();
        require(in == pattern(static_cast<std::uint64_t>(peer), kBytes), "a message of the flood");
      }
      for (Work& work : sends) work.wait();
    });
  }
}

TEST(Mailbox, ASenderThatWaitsForEachMessageIsHeldBackUntilTheyAreReceived) {
  run_ranks_on("aa", [](ControlPlane&, Mailbox& mailbox) {
    std::uint64_t value = 0;
    if (mailbox.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (std::uint64_t i = 0; i < 30'000; ++i) {
      if (mailbox.rank() == 0) {
        mailbox.send(&i, sizeof i, 1, {}).wait();
      } else {
        mailbox.receive(&value, sizeof value, 0, {}).wait();
        require(value == i, "the order");
      }
    }
  });
}

class MailboxMismatch : public testing::TestWithParam<std::tuple<std::string, std::size_t, bool>> {};

// Whether the message was small, and complete, or the receive was there first.
TEST_P(MailboxMismatch, IsNamedOnBothRanks) {
  const auto [placing, bytes, receive_first] = GetParam();
  run_ranks_on(placing, [&, bytes = bytes, first = receive_first](ControlPlane& control, Mailbox& mailbox) {
    Bytes data(bytes + 8);
    try {
      Work work;
      if (mailbox.rank() == (first ? 0 : 1)) control.barrier("the other one is first");
      work = mailbox.rank() == 0 ? mailbox.send(data.data(), bytes, 1, {3, 7})
                                 : mailbox.receive(data.data(), bytes + 8, 0, {3, 7});
      if (mailbox.rank() == (first ? 1 : 0)) control.barrier("the other one is first");
      work.wait();
      mailbox.receive(data.data(), 1, 1 - mailbox.rank(), {3, 8})
          .wait();  // a small message is complete when it is sent
      ADD_FAILURE() << "rank " << mailbox.rank() << " did not notice";
    } catch (const CommError& error) {
      const std::string where = ", group 3, tag 7)";
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("the sizes of a message differ: "),
                        HasSubstr("rank 0 send(" + std::to_string(bytes) + " bytes to rank 1" + where),
                        HasSubstr("rank 1 receive(" + std::to_string(bytes + 8) + " bytes from rank 0" + where)));
    }
    EXPECT_THROW(mailbox.progress(), CommError);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, MailboxMismatch,
                         testing::Combine(testing::Values("aa", "ab"), testing::Values(0u, 100u, 300'000u),
                                          testing::Bool()));

TEST(Mailbox, ARankThatDoesNotSendIsNamedAtTheDeadline) {
  for (const std::string placing : {"aaa", "abc"}) {
    CommunicatorOptions options = TestWorld(1).communicator_options();
    options.timeout = std::chrono::milliseconds(700);
    run_ranks_on(
        placing,
        [](ControlPlane& control, Mailbox& mailbox) {
          Bytes data(5);
          if (mailbox.rank() == 0) {
            try {
              mailbox.receive(data.data(), 5, 2, {1, 4}).wait();
              ADD_FAILURE() << "a message of rank 2";
            } catch (const TimedOut& error) {
              EXPECT_THAT(error.what(),
                          AllOf(HasSubstr("rank 0: receive(5 bytes from rank 2, group 1, tag 4), message 0"),
                                HasSubstr("timed out after 700 ms"),
                                HasSubstr("missing: rank 2 has not sent it (late: its heartbeats come)"),
                                Not(HasSubstr("rank 1"))));
            }
          }
          control.barrier("the others have ended");
        },
        options);
  }
}

TEST(Mailbox, ARankThatDoesNotReceiveIsNamedAtTheDeadline) {
  for (const std::string placing : {"aa", "ab"}) {
    CommunicatorOptions options = TestWorld(1).communicator_options();
    options.timeout = std::chrono::milliseconds(700);
    run_ranks_on(
        placing,
        [](ControlPlane& control, Mailbox& mailbox) {
          Bytes data(100'000);
          if (mailbox.rank() == 1) {
            try {
              mailbox.send(data.data(), data.size(), 0, {}).wait();
              ADD_FAILURE() << "rank 0 has taken it";
            } catch (const TimedOut& error) {
              EXPECT_THAT(error.what(),
                          AllOf(HasSubstr("rank 1: send(100000 bytes to rank 0, group 0, tag 0), message 0"),
                                HasSubstr("missing: rank 0 has not received it")));
            }
          }
          control.barrier("rank 1 has ended");
        },
        options);
  }
}

TEST(Mailbox, MissingRanksAreKnownBeforeTheDeadline) {
  run_ranks_on("aa", [](ControlPlane& control, Mailbox& mailbox) {
    Bytes data(100'000);
    if (mailbox.rank() == 0) {
      Work some = mailbox.receive(data.data(), 5, kAnyRank, {});
      Work large = mailbox.send(data.data(), data.size(), 1, {0, 1});
      ASSERT_EQ(some.missing().size(), 1u);
      EXPECT_THAT(some.missing()[0].lacks, HasSubstr("has not sent it"));
      ASSERT_EQ(large.missing().size(), 1u);
      EXPECT_THAT(large.missing()[0].lacks, HasSubstr("has not received it"));
      EXPECT_EQ(some.source(), -1);
      control.barrier("looked");
      some.wait();
      large.wait();
      EXPECT_EQ(some.source(), 1);
      EXPECT_TRUE(some.missing().empty());
    } else {
      control.barrier("looked");
      mailbox.send(data.data(), 5, 0, {}).wait();
      mailbox.receive(data.data(), data.size(), 0, {0, 1}).wait();
    }
  });
}

TEST(Mailbox, AbortFromAnotherThreadEndsAWaitAndItsCauseIsKept) {
  for (const std::string placing : {"aa", "ab"}) {
    run_ranks_on(placing, [](ControlPlane& control, Mailbox& mailbox) {
      if (mailbox.rank() == 0) {
        std::thread other([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          mailbox.abort("the disk is full");
          mailbox.abort("another cause");
        });
        char byte = 0;
        try {
          mailbox.receive(&byte, 1, 1, {}).wait();
          ADD_FAILURE() << "a message of rank 1";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr("the disk is full"));
        }
        other.join();
        EXPECT_THROW(mailbox.send(&byte, 1, 1, {}), CommError);
      }
      control.barrier("rank 0 has ended");
    });
  }
}

TEST(Mailbox, ARankThatHasClosedItsMailboxIsNamed) {
  for (const std::string placing : {"aa", "ab"}) {
    const TestWorld world = world_on(placing);
    test::run_control_ranks(world, [&](ControlPlane& control) {
      auto mailbox = make_mailbox(parts_of(control, world.communicator_options()));
      char byte = 'x';
      if (mailbox->rank() == 1) {
        mailbox->send(&byte, 1, 0, {}).wait();
        mailbox.reset();
      } else {
        control.barrier("rank 1 has closed its mailbox");
        mailbox->receive(&byte, 1, 1, {}).wait();  // what it has sent comes all the same
        try {
          mailbox->receive(&byte, 1, 1, {}).wait();
          ADD_FAILURE() << "a message that was not sent";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("was given up after"),
                                          HasSubstr("rank 1 has not sent it and has closed its mailbox")));
        }
      }
      if (control.world().rank == 1) control.barrier("rank 1 has closed its mailbox");
      control.barrier("rank 0 has noticed");
    });
  }
}

TEST(Mailbox, AWaitingThreadCallsItsHook) {
  std::atomic<int> calls{0};
  CommunicatorOptions options = TestWorld(1).communicator_options();
  options.while_waiting = [&] { return ++calls < 1'000'000; };
  run_ranks_on(
      "aa",
      [](ControlPlane&, Mailbox& mailbox) {
        char byte = 0;
        if (mailbox.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (mailbox.rank() == 1) mailbox.send(&byte, 1, 0, {}).wait();
        if (mailbox.rank() == 0) mailbox.receive(&byte, 1, 1, {}).wait();
      },
      options);
  EXPECT_GT(calls.load(), 50);  // a sleep takes 200 us at most, and as much again on a busy machine
}

struct NoMpi final : MpiJob {
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string broadcast(const std::string& text) override { return text; }
  std::unique_ptr<Communicator> make_communicator(ControlPlane&, const std::vector<int>&,
                                                  const CommunicatorOptions&) override {
    return nullptr;
  }
  void succeed() override {}
  void set_exit_code(int) override {}
};

TEST(Mailbox, MpiIsRefusedByName) {
  const TestWorld world = world_on("ab");
  test::run_control_ranks(world, [&](ControlPlane& control) {
    NoMpi mpi;
    BackendParts parts = parts_of(control, world.communicator_options());
    parts.mpi = &mpi;
    try {
      make_mailbox(parts);
      ADD_FAILURE() << "a mailbox over MPI";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("do not travel over MPI"));
    }
    control.barrier("refused");
  });
}

// The control plane's cause comes first: a connection says no more than that it is closed.
TEST(MailboxProcesses, AKilledRankIsNamedWithItsCause) {
  for (const std::string placing : {"aaa", "abc", "aab"}) {
    SCOPED_TRACE(placing);
    const TestWorld world = world_on(placing);
    const auto outcomes = test::run_processes(
        world,
        [&](ControlPlane& control, Communicator&) {
          const auto mailbox = make_mailbox(parts_of(control, world.communicator_options()));
          const std::vector<int> members{0, 1, 2};
          std::vector<Bytes> memory(6, Bytes(50'000));
          std::vector<Block> out;
          std::vector<ConstBlock> in;
          for (std::size_t i = 0; i < 3; ++i) {
            in.push_back({memory[i].data(), memory[i].size()});
            out.push_back({memory[i + 3].data(), memory[i + 3].size()});
          }
          for (int i = 0;; ++i) {
            if (i == 30 && mailbox->rank() == 2) {
              std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others wait by then
              ::raise(SIGKILL);
            }
            all_to_all(*mailbox, members, in, out, {0, 1}).wait();
          }
        },
        {.communicator = [&](ControlPlane&) {
          return std::move(test::make_thread_communicators(1, world.communicator_options()).front());
        }});
    EXPECT_EQ(outcomes[2].status.signal, SIGKILL);
    for (const std::size_t r : {0u, 1u}) {
      EXPECT_EQ(outcomes[r].status.code, 1);
      EXPECT_THAT(outcomes[r].error, AllOf(HasSubstr("group 0, tag 1), message "), HasSubstr(", was stopped after "),
                                           HasSubstr("rank 2 failed"), HasSubstr("is gone: connection lost")));
    }
  }
}

}  // namespace
}  // namespace dtrain::comm
