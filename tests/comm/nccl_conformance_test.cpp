// The conformance suite on the nccl backend, over the fake NCCL, which also checks how it is used.
#include "harness/conformance.h"
#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

struct Case {
  int ranks;
  test::ConformanceCase conformance;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.conformance.name << " on " << one.ranks << " ranks";
}

class NcclConformance : public testing::TestWithParam<Case> {};

TEST_P(NcclConformance, Holds) {
  test::NcclWorld world(GetParam().ranks);
  // On odd numbers of ranks some in the background, and on others at once.
  for (int r = 0; r < world.size; ++r) world.fake.faults(r).polls = world.size % 2 ? r % 3 * 2 : 0;
  run_nccl_ranks(world, [&](NcclCommunicator& comm, ControlPlane&) { GetParam().conformance.run(comm); });
  world.expect_clean();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& one : test::conformance_cases({.rank_order = false,
                           .wide_sums = false,
                           .exact_scaling = false,
                           .nan_wins = false,
                           .every_reduction = false})) {
      all.push_back({ranks, one});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Fake, NcclConformance, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.conformance.name + std::to_string(info.param.ranks);
});

}  // namespace
}  // namespace dtrain::comm
