// What does an operation on a stream do to clocks, counts and reports?
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "graph.h"
#include "report.h"
#include "streams.h"
#include "transfers.h"

namespace dtrain::test::fake_gpu {

using Count = std::int64_t FakeGpuCounts::*;

// The next operation of the stream. The caller holds the machine's mutex.
Access start_operation(Stream& stream, std::string_view what, Count count);
void report_conflicts(Range range, bool writes, const Access& now, const std::vector<Conflict>& conflicts);

// One operation: what it uses, then begin(), the computation, made() for results in new memory, and record() if
// captured.
class Launch {
 public:
  // On the device's current stream. `what` stays valid: an operator's name or a literal.
  Launch(c10::DeviceIndex device, std::string_view what);
  Launch(Stream& stream, std::string_view what) : stream_(stream), what_(what) {}

  void reads(const at::Tensor& tensor) { uses(extent_of(tensor), false); }
  void writes(const at::Tensor& tensor) {
    if (tensor.is_cuda()) tensor.mutable_data_ptr();  // a copy-on-write storage gets memory of its own now
    uses(extent_of(tensor), true);
  }
  void uses(Range range, bool writes) { uses_.push_back({range, writes}); }
  // The host will wait for it.
  void needs_host();

  // A thread that launches what must run after unfinished operations blocks here until those have ended.
  void begin(Count count);
  // Blocks nothing: the operation becomes one of the unfinished ones. Returns what it comes after.
  Clock begin_later(Count count);
  void made(const at::Tensor& tensor);
  bool captured() const { return stream_.graph != nullptr; }
  void record(Node node);

  Stream& stream() const { return stream_; }
  const Access& access() const { return access_; }

 private:
  struct Use {
    Range range;
    bool writes = false;
  };

  void touch(const Use& use);
  void touch_all();

  Stream& stream_;
  const std::string_view what_;
  std::vector<Use> uses_;
  Access access_;
};

}  // namespace dtrain::test::fake_gpu
