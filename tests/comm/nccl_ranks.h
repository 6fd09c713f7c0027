// Ranks as threads, each with a communicator over the fake NCCL.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/nccl.h"
#include "harness/fake_nccl.h"
#include "harness/run_ranks.h"
#include "nccl/nccl_api.h"

namespace dtrain::test {

struct NcclWorld : TestWorld {
  explicit NcclWorld(int world_size) : TestWorld(world_size), fake(world_size) {}
  std::unique_ptr<comm::NcclCommunicator> connect(comm::ControlPlane& control) {
    return comm::make_nccl_communicator_with(fake.api(control.world().rank), control, options, communicator_options());
  }
  // Nothing was used wrongly, nothing is left over. Once all communicators are gone.
  void expect_clean() { EXPECT_THAT(fake.complaints(), testing::IsEmpty()); }

  FakeNccl fake;
  comm::NcclOptions options;
};

inline void run_nccl_ranks(NcclWorld& world,
                           const std::function<void(comm::NcclCommunicator&, comm::ControlPlane&)>& fn) {
  run_control_ranks(world, [&](comm::ControlPlane& control) {
    const auto communicator = world.connect(control);
    fn(*communicator, control);
  });
}

// What each rank's CommError said; "" where none came. The error goes no further: other ranks do not receive it.
inline std::vector<std::string> nccl_errors(
    NcclWorld& world, const std::function<void(comm::NcclCommunicator&, comm::ControlPlane&)>& fn) {
  std::vector<std::string> errors(static_cast<std::size_t>(world.size));
  run_control_ranks(world, [&](comm::ControlPlane& control) {
    try {
      const auto communicator = world.connect(control);
      fn(*communicator, control);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(control.world().rank)] = error.what();
    }
  });
  return errors;
}

// What the tests of failures do: one operation that errors name as kNcclSum.
constexpr const char* kNcclSum = "all_reduce(sum, float32, 5000 elements, bucket 7)";

inline comm::Work nccl_sum(comm::Communicator& communicator, std::vector<float>& data) {
  data.resize(5000, 1.0f);
  return communicator.all_reduce(data.data(), data.size(), comm::DataType::kFloat32, {.bucket = 7});
}

}  // namespace dtrain::test
