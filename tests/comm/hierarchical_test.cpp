// Ranks on several hosts, as threads: shared memory within a "host", the thread backend between them.
#include "dtrain/comm/backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>

#include "dtrain/base/error.h"
#include "harness/conformance.h"
#include "harness/elements.h"
#include "harness/misuse.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

using Body = std::function<void(ControlPlane&, Communicator&)>;

// "aab": ranks 0 and 1 on one host, rank 2 on another.
void run_on_hosts(const std::string& placing, const Body& body,
                  std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  TestWorld world(static_cast<int>(placing.size()));
  for (const char host : placing) world.hosts.emplace_back(1, host);
  world.timeout = timeout;
  const auto hosts = static_cast<int>(std::set<char>(placing.begin(), placing.end()).size());
  std::vector<std::vector<std::unique_ptr<Communicator>>> outer;
  for (int i = 0; i < 2; ++i) outer.push_back(test::make_thread_communicators(hosts, world.communicator_options()));
  test::run_control_ranks(world, [&](ControlPlane& control) {
    std::size_t made = 0;
    const auto communicator = make_hierarchical_communicator(
        control,
        [&](ControlPlane& host, const std::vector<int>& members) {
          return make_shm_communicator(host, world.communicator_options(), members);
        },
        [&](ControlPlane& leaders, const std::vector<int>&) {
          return std::move(outer[made++][static_cast<std::size_t>(leaders.world().rank)]);
        },
        world.communicator_options());
    body(control, *communicator);
  });
}

struct Case {
  std::string placing;
  test::ConformanceCase conformance;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.conformance.name << " with ranks on " << one.placing;
}

class HierarchicalConformance : public testing::TestWithParam<Case> {};

TEST_P(HierarchicalConformance, Holds) {
  run_on_hosts(GetParam().placing, [](ControlPlane&, Communicator& comm) { GetParam().conformance.run(comm); });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* placing : {"a", "aa", "abc", "aabb", "aaab", "abab", "abbacba"}) {
    const std::string text = placing;
    const bool one_level = text == "a" || text == "aa" || text == "abc";
    for (const auto& one : test::conformance_cases({.rank_order = one_level})) all.push_back({text, one});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Placings, HierarchicalConformance, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.placing + "_" + info.param.conformance.name; });

float value_of(std::size_t rank, std::size_t i) {
  return std::sin(static_cast<float>(rank * 1013 + i * 7)) * 1000.0f;
}

// A host's ranks in rank order, then the hosts in the order of their lowest rank.
float sum_of(const std::string& placing, const std::function<float(std::size_t)>& value) {
  std::vector<std::pair<char, float>> hosts;
  for (std::size_t r = 0; r < placing.size(); ++r) {
    auto host = std::find_if(hosts.begin(), hosts.end(), [&](const auto& one) { return one.first == placing[r]; });
    if (host == hosts.end()) {
      hosts.emplace_back(placing[r], value(r));
    } else {
      host->second += value(r);
    }
  }
  float sum = hosts[0].second;
  for (std::size_t h = 1; h < hosts.size(); ++h) sum += hosts[h].second;
  return sum;
}

class SumOrder : public testing::TestWithParam<std::string> {};

TEST_P(SumOrder, IsHostsThenTheirOrder) {
  const std::string placing = GetParam();
  run_on_hosts(placing, [&](ControlPlane&, Communicator& comm) {
    EXPECT_EQ(comm.backend(), "hierarchical");
    constexpr std::size_t kCount = 30'011;
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> data(kCount);
    for (std::size_t i = 0; i < kCount; ++i) data[i] = value_of(rank, i);
    std::vector<float> parts = data;
    std::vector<float> rooted(kCount);
    for (int root = 0; root < comm.world_size(); ++root) {
      comm.reduce(data.data(), rooted.data(), kCount, DataType::kFloat32, root).wait();
    }
    comm.all_reduce(data.data(), kCount, DataType::kFloat32).wait();
    comm.reduce_parts(parts.data(), kCount, DataType::kFloat32).wait();
    comm.gather_parts(parts.data(), kCount, DataType::kFloat32).wait();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      wrong += data[i] != sum_of(placing, [&](std::size_t r) { return value_of(r, i); });
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(parts, data) << "in parts the bits are the same";
    EXPECT_EQ(rooted, data) << "on a root the bits are the same";
  });
}

// Values of narrow types stay wide between the levels.
TEST_P(SumOrder, NarrowTypesAreRoundedOnce) {
  const std::string placing = GetParam();
  run_on_hosts(placing, [&](ControlPlane&, Communicator& comm) {
    constexpr std::size_t kCount = 5003;
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
      const auto narrow = [&](std::size_t r, std::size_t i) {
        return test::decode_narrow(type, test::encode_narrow(type, static_cast<double>(value_of(r, i))));
      };
      std::vector<std::byte> data(kCount * 2);
      for (std::size_t i = 0; i < kCount; ++i) {
        test::store_element(type, data.data(), i,
                            static_cast<double>(value_of(static_cast<std::size_t>(comm.rank()), i)));
      }
      comm.all_reduce(data.data(), kCount, type, {.post_scale = 0.25}).wait();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        const float sum = sum_of(placing, [&](std::size_t r) { return static_cast<float>(narrow(r, i)); });
        wrong += test::load_floating(type, data.data(), i) !=
                 test::decode_narrow(type, test::encode_narrow(type, static_cast<double>(sum * 0.25f)));
      }
      EXPECT_EQ(wrong, 0u) << name_of(type);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Placings, SumOrder, testing::Values("aabb", "aaab", "abba", "abbacba"));

std::vector<std::string> errors_of(const std::string& placing, std::chrono::milliseconds timeout, const Body& body) {
  std::vector<std::string> errors(placing.size());
  run_on_hosts(
      placing,
      [&](ControlPlane& control, Communicator& comm) {
        try {
          body(control, comm);
        } catch (const CommError& error) {
          errors[static_cast<std::size_t>(comm.rank())] = error.what();
        }
        control.barrier("all have said so");
      },
      timeout);
  return errors;
}

class HierarchicalMisuse : public testing::TestWithParam<std::string> {};

TEST_P(HierarchicalMisuse, BothOperationsAreNamedOnEveryRank) {
  for (const auto& misuse : test::misuse_cases()) {
    SCOPED_TRACE(misuse.name);
    const auto errors = errors_of(GetParam(), std::chrono::seconds(20), [&](ControlPlane&, Communicator& comm) {
      std::vector<float> data(5000u * static_cast<unsigned>(comm.world_size()));
      const auto buffer = comm.allocate(6000 * sizeof(float));  // operation 0
      comm.barrier().wait();                                    // operation 1
      const bool last = comm.rank() == comm.world_size() - 1;
      (last ? misuse.last : misuse.most)(comm, data.data()).wait();
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr(misuse.text(2, static_cast<int>(GetParam().size()))));
    }
  }
}

TEST_P(HierarchicalMisuse, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  const int last = static_cast<int>(GetParam().size()) - 1;
  const auto errors =
      errors_of(GetParam(), std::chrono::milliseconds(1500), [&](ControlPlane& control, Communicator& comm) {
        std::vector<float> data(5000);
        comm.barrier().wait();
        if (comm.rank() == last) {
          control.get_within("never", std::chrono::milliseconds(1200));
          return;
        }
        comm.all_reduce(data.data(), data.size(), DataType::kFloat32, {.bucket = 7}).wait();
      });
  bool named = false;
  for (int r = 0; r < last; ++r) {
    const std::string& error = errors[static_cast<std::size_t>(r)];
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce(sum, float32, 5000 elements, bucket 7), operation 1, ")));
    named = named || error.find("missing: rank " + std::to_string(last) + " has not entered it") != std::string::npos;
  }
  EXPECT_TRUE(named) << testing::PrintToString(errors);
}

TEST_P(HierarchicalMisuse, AbortReachesEveryHost) {
  const auto errors = errors_of(GetParam(), std::chrono::seconds(20), [](ControlPlane&, Communicator& comm) {
    comm.barrier().wait();
    if (comm.rank() == comm.world_size() - 1) {
      comm.abort("the disk is full");
      comm.abort("a later cause");
    }
    comm.barrier().wait();
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("the disk is full"), Not(HasSubstr("later"))));
}

TEST_P(HierarchicalMisuse, TheCauseOfAFailingRankReachesAll) {
  std::vector<std::string> errors(GetParam().size());
  const Body body = [&](ControlPlane&, Communicator& comm) {
    try {
      comm.barrier().wait();
      if (comm.rank() == 1) throw CommError("loss is NaN");
      comm.barrier().wait();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  };
  EXPECT_THROW(run_on_hosts(GetParam(), body), CommError);
  for (std::size_t r = 0; r < errors.size(); ++r) {
    EXPECT_THAT(errors[r], HasSubstr(r == 1 ? "loss is NaN" : "rank 1 failed: loss is NaN")) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Placings, HierarchicalMisuse, testing::Values("aabb", "aaab", "abab", "abc"));

TEST(Hierarchical, ErrorsOfOneHostNameTheRunsRanks) {
  const auto errors = errors_of("aabb", std::chrono::seconds(20),
                                [](ControlPlane&, Communicator& comm) { (void)comm.allocate(std::size_t{1} << 62); });
  EXPECT_THAT(errors[1], AnyOf(HasSubstr("rank 0 cannot allocate"), HasSubstr("rank 1 cannot allocate")));
  for (const std::size_t r : {2, 3}) {
    EXPECT_THAT(errors[r], AnyOf(HasSubstr("rank 2 cannot allocate"), HasSubstr("rank 3 cannot allocate")));
  }
}

TEST(Hierarchical, CommonMemoryIsOfOneHost) {
  for (const char* placing : {"aa", "aab"}) {
    run_on_hosts(placing, [&](ControlPlane&, Communicator& comm) {
      const auto common = comm.allocate_common(64);
      ASSERT_EQ(common != nullptr, std::string(placing) == "aa");
      if (!common) return;
      if (comm.rank() == 1) common->bytes()[5] = std::byte{42};
      comm.barrier().wait();
      EXPECT_EQ(common->bytes()[5], std::byte{42});
    });
  }
}

TEST(Hierarchical, ASecondOneOfTheSameRanks) {
  run_on_hosts("aa", [](ControlPlane& control, Communicator& first) {
    const CommunicatorOptions options{std::chrono::seconds(30), std::chrono::seconds(30), make_null_logger()};
    const auto second = make_hierarchical_communicator(
        control, [&](ControlPlane& host, const std::vector<int>&) { return make_shm_communicator(host, options); }, {},
        options);
    std::int32_t sum = 1;
    second->all_reduce(&sum, 1, DataType::kInt32).wait();
    first.all_reduce(&sum, 1, DataType::kInt32).wait();
    EXPECT_EQ(sum, 4);
  });
}

}  // namespace
}  // namespace dtrain::comm
