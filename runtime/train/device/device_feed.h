#pragma once

#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "dtrain/data/loader.h"
#include "dtrain/train/loader.h"

namespace dtrain::train {

// Returns libtorch's allocator of page-locked memory, from which a GPU copies while the host continues; any thread,
// once the device is open. It reuses memory only after the copies that read it.
data::BatchAllocator pinned_allocator();

// Copies batches to the device from page-locked memory, on a separate stream, while the device computes. The host is
// some batches ahead of the device (StepsInFlight), so a batch arrives while the device computes an earlier batch.
// Training thread.
class DeviceFeed {
 public:
  explicit DeviceFeed(c10::Device device);

  // Replaces the batch's tensors by tensors on the device, in the order of the current stream. The host does not wait.
  // Does nothing on a CPU. Tensors in page-locked memory must keep their values until they are copied; other tensors
  // are copied to page-locked memory first.
  void move(Batch& batch);
  // Releases the last batch, whose work the device has done.
  void let_go() { last_.clear(); }

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> arrived_;
  // The last batch, kept so that an exception does not free it: libtorch records events when it frees such memory,
  // which throws if the device has failed.
  std::vector<at::Tensor> last_;
};

}  // namespace dtrain::train
