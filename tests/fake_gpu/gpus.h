// The fake GPUs of these tests, opened before main().
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "harness/fake_gpu.h"

namespace dtrain::test {

inline FakeGpus& gpus = open_fake_gpus(DTRAIN_BINARY_DIR "/tests/fake_gpu.so", 2);

inline const at::Device kGpu(at::kCUDA, 0);
inline const at::Device kOtherGpu(at::kCUDA, 1);

inline const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl the(at::kCUDA);
  return the;
}
inline c10::Stream pool_stream(at::Device device = kGpu) {
  return guard().getStreamFromGlobalPool(device);
}
inline c10::Stream current_stream(at::Device device = kGpu) {
  return guard().getStream(device);
}

// What is launched on `later` from now on waits for what was launched on `first`.
inline void order(c10::Stream first, c10::Stream later) {
  c10::Event event(at::kCUDA);
  event.record(first);
  event.block(later);
}

class OnGpus : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // small tensors, and other tests beside these
    clear();
  }
  void TearDown() override { clear(); }

  static void clear() {
    gpus.heal();
    gpus.take_reports();
    gpus.take_counts();
  }
};

}  // namespace dtrain::test
