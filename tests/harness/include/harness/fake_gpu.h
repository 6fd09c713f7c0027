// CUDA devices that are not there, for tests of code that trains on GPUs.
//
// The library fake_gpu.so registers itself with libtorch as CUDA. A test opens it in the place of libtorch_cuda.so,
// before the first call of libtorch that asks for CUDA (at::manual_seed is one):
//
//   FakeGpus& gpus = open_fake_gpus(DTRAIN_BINARY_DIR "/tests/fake_gpu.so", 2);
//   train(at::Device(at::kCUDA, 0));
//   EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
//   EXPECT_EQ(gpus.take_counts().host_syncs, 0);
//
// Kernels compute at once, with libtorch's CPU kernels. What a GPU would do later is known from vector clocks, so a
// missing wait is found in every run and not by chance:
//
// - Two operations conflict when both touch the same bytes and one of them writes. Each conflict that is not ordered by
//   a stream, an event or a wait of the host is reported. A strided tensor counts as all bytes from its first to its
//   last.
// - Memory that is freed while a stream still uses it, without record_stream(), is reported at the next allocation that
//   could get it. Fresh memory is filled with NaN (all bits set).
// - An operation on a device that is not current is reported.
// - A non_blocking copy between pinned memory and a device ends when the host waits for it or sees that it is done: a
//   host that reads earlier finds NaN, and a host that writes the source earlier is reported.
// - The host has no access to device memory: SIGSEGV, after a message that says what was touched.
// - A CUDA graph computes nothing while it is captured. Waits and queries by the host end the capture with an error.
//
// What it cannot show: numerics, speed, overlap and memory limits of real GPUs, and waits that only the driver does.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace dtrain::test {

struct FakeGpuCounts {
  std::int64_t kernels = 0;           // operators, and operations of other libraries
  std::int64_t graph_launches = 0;    // each stands for all kernels and copies in the graph
  std::int64_t copies_to_device = 0;  // from the host
  std::int64_t copies_to_host = 0;
  std::int64_t copies_on_device = 0;  // also from one device to another
  std::int64_t pageable_copies = 0;   // of the copies from and to the host: those that block because of their memory
  std::int64_t scalar_reads = 0;      // item()
  std::int64_t host_syncs =
      0;  // all waits of the host: synchronize(), item(), blocking copies, sizes that depend on data
  std::int64_t allocations = 0;
  std::int64_t reports = 0;  // also repeated ones
  std::int64_t nccl_operations = 0;
};

struct FakeGpuMemory {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

class FakeGpus {
 public:
  // Since the last call.
  virtual FakeGpuCounts take_counts() = 0;
  // The texts of all reports since the last call, each once.
  virtual std::vector<std::string> take_reports() = 0;

  // Each event and stream answers its first `queries` queries with "not ready", unless the host knows better.
  virtual void delay_queries(int queries) = 0;
  // The n-th allocation from now on throws c10::OutOfMemoryError; 0: none does.
  virtual void fail_allocation(int n) = 0;
  // The n-th kernel or copy from now on is the last of its device: all that follows there throws c10::AcceleratorError.
  virtual void lose_device(int n) = 0;
  // The n-th operation of NCCL from now on never ends; fail_nccl: and from then on all communicators of the process have
  // the asynchronous error ncclRemoteError.
  virtual void hang_nccl(int n) = 0;
  virtual void fail_nccl(int n) = 0;
  // No more faults: lost devices are back, captures under way and unfinished operations are abandoned, and the host
  // knows that all streams are done. Counts and reports stay.
  virtual void heal() = 0;

  // Capture on the calling thread's current stream, which must not be the default stream. Errors are those of CUDA.
  virtual void begin_capture() = 0;
  virtual int end_capture() = 0;       // the graph
  virtual void replay(int graph) = 0;  // on the current stream
  virtual void destroy_graph(int graph) = 0;

  // An operation of another library: `body` runs now, and again at each replay of a graph that it was captured in.
  // `stream` is a native handle: c10::Stream::native_handle(), nullptr for the current device's default stream.
  virtual void launch(void* stream, const std::string& what, std::span<const FakeGpuMemory> reads,
                      std::span<const FakeGpuMemory> writes, std::function<void()> body) = 0;
  // Where `body` finds device memory; other addresses stay as they are.
  virtual void* alias(const void* data) = 0;

 protected:
  ~FakeGpus() = default;
};

// The library's only function of its own.
using FakeGpusFunction = FakeGpus*();
inline constexpr const char* kFakeGpusFunction = "dtrain_fake_gpus";

// How many devices there are is decided when the library is opened first: DTRAIN_FAKE_GPUS, else `devices`. Each has
// DTRAIN_FAKE_GPU_MIB MiB, 4,096 by default. DTRAIN_FAKE_GPU_DELAYED_QUERIES is for delay_queries().
inline FakeGpus& open_fake_gpus(const std::string& library, int devices) {
  ::setenv("DTRAIN_FAKE_GPUS", std::to_string(devices).c_str(), 0);
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const function = handle == nullptr ? nullptr : ::dlsym(handle, kFakeGpusFunction);
  if (function == nullptr) throw std::runtime_error(::dlerror());
  return *reinterpret_cast<FakeGpusFunction*>(function)();
}

}  // namespace dtrain::test
