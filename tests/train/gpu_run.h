// A rank on a GPU that is not there, for tests of the parts of training. tests/fake_gpu/gpus.h opens the fake GPUs.
#pragma once

#include <functional>
#include <memory>

#include "device/training_device.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/nccl.h"
#include "dtrain/profile/recorder.h"
#include "gpus.h"
#include "harness/run_ranks.h"
#include "nccl/nccl_api.h"

namespace dtrain::train {

struct GpuRun {
  explicit GpuRun(comm::ControlPlane& its_control, int gpu = 0)
      : control(its_control),
        device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)),
        host(comm::make_shm_communicator(control, test::TestWorld(1).communicator_options())),
        recorder({}, clock, clock.monotonic()) {
    comm::NcclLibraries libraries;
    libraries.nccl = libraries.cuda = {DTRAIN_BINARY_DIR "/tests/fake_gpu.so"};
    comm::NcclOptions options;
    options.device = gpu;
    options.current_stream = [this] { return native_handle(current_stream(device)); };
    nccl = comm::make_nccl_communicator_with(comm::open_nccl(libraries), control, options,
                                             test::TestWorld(1).communicator_options());
  }

  comm::ControlPlane& control;
  const c10::Device device;
  std::unique_ptr<comm::Communicator> host;
  std::unique_ptr<comm::NcclCommunicator> nccl;
  SystemClock clock;
  profile::Recorder recorder;
};

// One rank. The fake GPUs find nothing wrong.
inline void run_on_gpu(const std::function<void(GpuRun&)>& fn) {
  test::run_control_ranks(test::TestWorld(1), [&](comm::ControlPlane& control) {
    GpuRun run(control);
    fn(run);
  });
  EXPECT_THAT(test::gpus.take_reports(), testing::IsEmpty());
}

}  // namespace dtrain::train
