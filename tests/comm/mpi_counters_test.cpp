// One rank's part of an MPI operation among up to 1,000 ranks: whether it sends, counts and ends as it should. The
// calls of MPI that an operation makes are this file's own: they hold a message's content against what is expected, and
// make up the peers'. Everything else is what runs over MPI.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "mpi/mpi_operation.h"

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
Peers* under_test = nullptr;

bool all_are(const void* data, int bytes, float value) {
  const auto* const floats = static_cast<const float*>(data);
  return std::all_of(floats, floats + static_cast<std::size_t>(bytes) / sizeof(float),
                     [&](float v) { return v == value; });
}

}  // namespace

extern "C" int MPI_Isend(const void* data, int bytes, MPI_Datatype, int, int tag, MPI_Comm, MPI_Request* request) {
  const auto kind = static_cast<MpiMessageKind>(tag);
  if (kind == MpiMessageKind::kValues) {
    under_test->errors += all_are(data, bytes, value_of(under_test->rank)) ? 0 : 1;
  } else if (kind == MpiMessageKind::kResult) {
    under_test->errors += all_are(data, bytes, under_test->result_of(under_test->rank)) ? 0 : 1;
  }
  static char sent;
  *request = reinterpret_cast<MPI_Request>(&sent);
  return MPI_SUCCESS;
}

extern "C" int MPI_Irecv(void* data, int bytes, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Request* request) {
  const auto fill = [&](void* to, int room, float value) {
    std::fill_n(static_cast<float*>(to), static_cast<std::size_t>(room) / sizeof(float), value);
  };
  switch (static_cast<MpiMessageKind>(tag)) {
    case MpiMessageKind::kHello: {
      auto* const hello = static_cast<MpiHello*>(data);
      hello->descriptor = under_test->descriptor;
      fill(hello->payload, sizeof hello->payload, value_of(from));
      ++under_test->hellos[static_cast<std::size_t>(from)];
      break;
    }
    case MpiMessageKind::kValues:
      fill(data, bytes, value_of(from));
      break;
    case MpiMessageKind::kResult:
      fill(data, bytes, under_test->result_of(from));
      break;
  }
  static char received;
  *request = reinterpret_cast<MPI_Request>(&received);
  return MPI_SUCCESS;
}

// About half of what is outstanding is over, at least one message.
extern "C" int MPI_Testsome(int count, MPI_Request* requests, int* over, int* indices, MPI_Status*) {
  *over = 0;
  for (int i = 0; i < count; ++i) {
    if (under_test->random() % 2 == 0 && !(i + 1 == count && *over == 0)) continue;
    requests[i] = MPI_REQUEST_NULL;
    indices[(*over)++] = i;
  }
  return MPI_SUCCESS;
}

namespace {

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

class MpiCounters : public testing::TestWithParam<Case> {};

TEST_P(MpiCounters, AnOperationEndsAmongManyRanks) {
  for (const int ranks : {2, 3, 16, 255, 256, 257, 258, 512, 1000}) {
    for (const int rank : {0, ranks / 2, ranks - 1}) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
      Peers peers;
      under_test = &peers;
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
      if (d.kind == Kind::kBroadcast) d.root = ranks / 3;
      peers.hellos.assign(n, 0);

      std::vector<float> in(by_rank ? n * d.count : d.count, value_of(rank));
      std::vector<float> out(in.size(), -1);
      const bool in_place = d.kind == Kind::kBroadcast || d.kind == Kind::kReduceParts || d.kind == Kind::kGatherParts;
      float* const to = in_place ? in.data() : out.data();
      MpiRoute route;
      route.rank = rank;
      for (int r = 0; r < ranks; ++r) route.members.push_back(r);
      MpiRequests requests;
      MpiOperation operation(d, in.data(), to, rank, ranks);
      EXPECT_EQ(operation.is_small(), GetParam().small);
      operation.start(route, requests);
      // Far more turns than it takes: a counter that is wrong would go on for ever.
      for (int turn = 0; turn < 10'000 && !operation.finished(); ++turn) {
        requests.poll([](const MpiMessage& message) { message.operation->done(message); });
        if (!operation.data_begun() && operation.all_entered()) operation.begin_data();
        operation.advance(requests);
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
                          Kind::kGatherParts, Kind::kBroadcast}) {
    for (const bool small : {false, true}) all.push_back({kind, small});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, MpiCounters, testing::ValuesIn(cases()), [](const auto& info) {
  return "Kind" + std::to_string(static_cast<int>(info.param.kind)) + (info.param.small ? "Small" : "Large");
});

}  // namespace
}  // namespace dtrain::comm
