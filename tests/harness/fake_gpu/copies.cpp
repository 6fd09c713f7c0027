// What does copy_ do between host and devices: does it block, and when does it land?
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "kernels.h"
#include "launch.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

std::uint64_t pinned_serial(const at::Tensor& tensor) {
  const std::scoped_lock lock(machine().mutex);
  return machine().pinned.serial(tensor.const_data_ptr());
}

// Whether the tensors lie alike, so that bytes are copied; otherwise libtorch makes contiguous tensors first, and one
// that it makes on the host is pageable.
bool lie_alike(const at::Tensor& to, const at::Tensor& from) {
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense();
}

// The same memory of the host without a hold on it: a graph has its address and nothing else.
at::Tensor unowned(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

bool still_pinned(const at::Tensor& host, std::uint64_t serial) {
  const std::scoped_lock lock(machine().mutex);
  if (machine().pinned.serial(host.const_data_ptr()) == serial) return true;
  machine().report.add("a graph copies from or to pinned memory that was freed after the capture");
  return false;
}

// Pageable memory, or a copy that is not asked to be asynchronous: the host waits.
void end_copy(Launch& launch, bool pinned, bool asynchronous) {
  if (asynchronous) return;
  const std::scoped_lock lock(machine().mutex);
  if (!pinned) machine().report.count(&FakeGpuCounts::pageable_copies);
  machine().streams.wait(launch.stream(), "copy_ that blocks");
}

void check_capture(Launch& launch, bool pinned, bool asynchronous) {
  if (!launch.captured() || asynchronous) return;
  if (pinned) return launch.needs_host();
  launch.stream().graph->invalidate();
  TORCH_CHECK(false,
              "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.");
}

void copy_to_device(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const std::uint64_t serial =
      lie_alike(self, source) || (self.dtype() == source.dtype() && source.is_contiguous()) ? pinned_serial(source) : 0;
  const bool asynchronous = serial != 0 && non_blocking;
  Launch launch(self.get_device(), "copy_ from the host");
  check_capture(launch, serial != 0, asynchronous);
  launch.writes(self);
  if (serial != 0) launch.reads(source);
  launch.begin(&FakeGpuCounts::copies_to_device);
  {
    const std::scoped_lock lock(machine().mutex);
    machine().transfers.land(extent_of(source));
    if (asynchronous && !launch.captured()) machine().transfers.to_device(launch.access(), source);
  }
  at::Tensor to = on_host(self);
  to.copy_(source);
  if (launch.captured()) {
    launch.record([to, from = unowned(source), serial](const Access&) mutable {
      if (!still_pinned(from, serial)) return;
      std::unique_lock lock(machine().mutex);
      machine().transfers.land(extent_of(from));
      lock.unlock();
      to.copy_(from);
    });
  }
  end_copy(launch, serial != 0, asynchronous);
}

void copy_to_host(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const std::uint64_t serial = lie_alike(self, source) || self.is_contiguous() ? pinned_serial(self) : 0;
  const bool asynchronous = serial != 0 && non_blocking;
  Launch launch(source.get_device(), "copy_ to the host");
  check_capture(launch, serial != 0, asynchronous);
  launch.reads(source);
  if (serial != 0) launch.writes(self);
  launch.begin(&FakeGpuCounts::copies_to_host);
  const auto now = [](const at::Tensor& to, const at::Tensor& from) { return at::empty_like(to).copy_(from); };
  if (launch.captured()) {
    launch.record([to = unowned(self), from = on_host(source), serial, now](const Access& replay) {
      if (!still_pinned(to, serial)) return;
      const std::scoped_lock lock(machine().mutex);
      machine().transfers.to_host(replay, to, now(to, from));
    });
  } else if (asynchronous) {
    const std::scoped_lock lock(machine().mutex);
    machine().transfers.to_host(launch.access(), self, now(self, on_host(source)));
  } else {
    self.copy_(on_host(source));
  }
  end_copy(launch, serial != 0, asynchronous);
}

// On the source's stream, which and the destination's stream wait for each other before and after.
void copy_on_device(const at::Tensor& self, const at::Tensor& source) {
  const OnDevice on(current_device() == self.get_device() ? source.get_device() : current_device());
  Launch launch(source.get_device(), "copy_");
  const auto wait_for_each_other = [&] {
    if (self.get_device() == source.get_device()) return;
    const std::scoped_lock lock(machine().mutex);
    Stream& other = machine().streams.current(self.get_device());
    for (auto [first, second] : {std::pair(&launch.stream(), &other), std::pair(&other, &launch.stream())}) {
      Event event;
      machine().streams.record(event, *first);
      machine().streams.block(event, *second);
    }
  };
  wait_for_each_other();
  launch.reads(source);
  launch.writes(self);
  launch.begin(&FakeGpuCounts::copies_on_device);
  at::Tensor to = on_host(self);
  to.copy_(on_host(source));
  if (launch.captured()) launch.record([to, from = on_host(source)](const Access&) mutable { to.copy_(from); });
  wait_for_each_other();
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.numel() == 0 || self.is_same(source)) return self;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!self.is_cuda()) {
    copy_to_host(self, source, non_blocking);
  } else if (source.is_cuda()) {
    copy_on_device(self, source);
  } else {
    copy_to_device(self, source, non_blocking);
  }
  return self;
}

}  // namespace dtrain::test::fake_gpu
