// One rank's part of an operation among up to 1,000 ranks: whether it sends, counts and ends as it should. The
// transport is this file's own: it holds a message's content against what is expected, and makes up the peers'.
// Everything else is what runs over MPI and TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "messages/message_operation.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kFloats = 70;  // of a rank's part, where each has one

// Rank r has r + 1 everywhere.
float value_of(int rank) {
  return static_cast<float>(rank + 1);
}

// What is under way: one operation of rank `rank` of `ranks`.
struct Peers {
  Descriptor descriptor;
  int ranks = 1;
  int rank = 0;
  std::mt19937 random{7};
  int errors = 0;
  std::vector<int> hellos;  // received, by rank

  // The result of rank r's part.
  float result_of(int r) const {
    if (reduces(descriptor.kind)) return static_cast<float>(ranks) * static_cast<float>(ranks + 1) / 2;
    return descriptor.kind == Kind::kBroadcast ? value_of(descriptor.root) : value_of(r);
  }
};
bool all_are(const void* data, std::size_t bytes, float value) {
  const auto* const floats = static_cast<const float*>(data);
  return std::all_of(floats, floats + bytes / sizeof(float), [&](float v) { return v == value; });
}

// About half of what is outstanding is over at each look, at least one message.
class MadeUpTransport final : public MessageTransport {
 public:
  explicit MadeUpTransport(Peers& peers) : peers_(peers) {}

  void send(const Message& message, int, const void* data, std::size_t bytes) override {
    if (message.kind == MessageKind::kValues) {
      peers_.errors += all_are(data, bytes, value_of(peers_.rank)) ? 0 : 1;
    } else if (message.kind == MessageKind::kResult) {
      peers_.errors += all_are(data, bytes, peers_.result_of(peers_.rank)) ? 0 : 1;
    }
    outstanding_.push_back(message);
  }

  void receive(const Message& message, int, void* data, std::size_t bytes) override {
    const auto fill = [](void* to, std::size_t room, float value) {
      std::fill_n(static_cast<float*>(to), room / sizeof(float), value);
    };
    const int from = message.peer;
    switch (message.kind) {
      case MessageKind::kHello: {
        auto* const hello = static_cast<MessageHello*>(data);
        hello->descriptor = peers_.descriptor;
        fill(hello->payload, sizeof hello->payload, value_of(from));
        ++peers_.hellos[static_cast<std::size_t>(from)];
        break;
      }
      case MessageKind::kValues:
        fill(data, bytes, value_of(from));
        break;
      case MessageKind::kResult:
        fill(data, bytes, peers_.result_of(from));
        break;
    }
    outstanding_.push_back(message);
  }

  bool poll(const std::function<void(const Message&)>& done) override {
    std::vector<Message> over;
    std::vector<Message> left;
    for (std::size_t i = 0; i < outstanding_.size(); ++i) {
      const bool is_over = peers_.random() % 2 != 0 || (i + 1 == outstanding_.size() && over.empty());
      (is_over ? over : left).push_back(outstanding_[i]);
    }
    outstanding_ = std::move(left);
    for (const Message& message : over) done(message);
    return !over.empty();
  }

 private:
  Peers& peers_;
  std::vector<Message> outstanding_;
};

struct Case {
  Kind kind;
  bool small;
};

void PrintTo(const Case& one, std::ostream* out) {
  Descriptor descriptor;
  descriptor.kind = one.kind;
  *out << describe(descriptor) << (one.small ? ", small" : "");
}

// How many elements of a result are wrong.
std::size_t wrong_in(const Peers& peers, const float* out) {
  const Descriptor& d = peers.descriptor;
  std::size_t wrong = 0;
  if (out == nullptr) return wrong;
  if (d.kind == Kind::kAllGather || d.kind == Kind::kGatherParts) {
    for (int r = 0; r < peers.ranks; ++r) {
      const auto begin = static_cast<std::size_t>(r) * d.count;
      const Part part =
          d.kind == Kind::kAllGather ? Part{begin, begin + d.count} : part_of(d.count, d.type, r, peers.ranks);
      for (std::size_t i = part.begin; i < part.end; ++i) wrong += out[i] != peers.result_of(r);
    }
  } else {
    const bool part = d.kind == Kind::kReduceParts;
    const Part range = part ? part_of(d.count, d.type, peers.rank, peers.ranks) : Part{0, d.count};
    for (std::size_t i = range.begin; i < range.end; ++i) wrong += out[i] != peers.result_of(0);
  }
  return wrong;
}

class MessageCounters : public testing::TestWithParam<Case> {};

TEST_P(MessageCounters, AnOperationEndsAmongManyRanks) {
  for (const int ranks : {2, 3, 16, 255, 256, 257, 258, 512, 1000}) {
    for (const int rank : {0, ranks / 2, ranks - 1}) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
      Peers peers;
      peers.ranks = ranks;
      peers.rank = rank;
      const auto n = static_cast<std::size_t>(ranks);
      const bool by_rank = GetParam().kind == Kind::kReduceScatter || GetParam().kind == Kind::kAllGather;
      // A line of 16 for each rank at least, and more than a hello holds.
      const std::size_t large = by_rank ? 1000 : std::max<std::size_t>(n * 16 + 5, 1000);
      Descriptor& d = peers.descriptor;
      d.kind = GetParam().kind;
      d.type = DataType::kFloat32;
      d.count = GetParam().small ? kFloats : large;
      if (d.kind == Kind::kBroadcast || d.kind == Kind::kReduce) d.root = ranks / 3;
      peers.hellos.assign(n, 0);

      std::vector<float> in(by_rank ? n * d.count : d.count, value_of(rank));
      std::vector<float> out(in.size(), -1);
      const bool in_place = d.kind == Kind::kBroadcast || d.kind == Kind::kReduceParts || d.kind == Kind::kGatherParts;
      const bool has_result = d.kind != Kind::kReduce || rank == d.root;
      float* const to = in_place ? in.data() : has_result ? out.data() : nullptr;
      MessageRoute route;
      route.rank = rank;
      for (int r = 0; r < ranks; ++r) route.members.push_back(r);
      MadeUpTransport transport(peers);
      MessageOperation operation(d, in.data(), to, rank, ranks);
      EXPECT_EQ(operation.is_small(), GetParam().small);
      operation.start(route, transport);
      // Far more turns than it takes: a counter that is wrong would go on for ever.
      for (int turn = 0; turn < 10'000 && !operation.finished(); ++turn) {
        transport.poll([](const Message& message) { message.operation->done(message); });
        if (!operation.data_begun() && operation.all_entered()) operation.begin_data();
        operation.advance(transport);
      }
      ASSERT_TRUE(operation.finished());
      EXPECT_EQ(peers.errors, 0) << "messages with other content";
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(peers.hellos[static_cast<std::size_t>(r)], r == rank ? 0 : 1);
      EXPECT_EQ(wrong_in(peers, to), 0u);
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kReduceParts, Kind::kAllGather,
                          Kind::kGatherParts, Kind::kBroadcast, Kind::kReduce}) {
    for (const bool small : {false, true}) all.push_back({kind, small});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, MessageCounters, testing::ValuesIn(cases()), [](const auto& info) {
  return "Kind" + std::to_string(static_cast<int>(info.param.kind)) + (info.param.small ? "Small" : "Large");
});

}  // namespace
}  // namespace dtrain::comm
