// Batches on their way to the device: from page-locked memory, on a stream of their own, beside what the device
// computes. The host is some batches ahead of the device (StepsInFlight), so a batch arrives while the one before it is
// computed. Training thread.
#pragma once

#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "dtrain/train/loader.h"

namespace dtrain::train {

class DeviceFeed {
 public:
  explicit DeviceFeed(c10::Device device);

  // Replaces the batch's tensors by tensors on the device, in the order of the current stream. The host does not wait.
  // On a CPU nothing happens. The tensors of a batch from page-locked memory must keep their values until the device
  // has them; other tensors are copied to page-locked memory first.
  void move(Batch& batch);
  // Lets go of the last batch, whose work the device has done.
  void let_go() { last_.clear(); }

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> arrived_;
  // The last batch. An exception must not be what frees it: libtorch records events when it frees such memory, and a
  // device that has failed makes that throw.
  std::vector<at::Tensor> last_;
};

}  // namespace dtrain::train
