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
// - A CUDA graph computes nothing while it is captured. Waits and queries by the host end the capture with an error:
//   those that concern captured streams, and others as the capture's mode says. at::cuda::CUDAGraph is there, with the
//   functions that dtrain calls.
//
// The library is the CUDA runtime and NCCL, too: the functions that the nccl backend calls work on libtorch's streams,
// events and memory, so that a missing wait between a kernel and an all-reduce is reported like any other.
//
// - NCCL's ranks are processes of this machine. A communicator's data is in shared memory that the unique id names. Its
//   name is gone from /dev/shm once all ranks have connected; a rank that dies before that leaves it there.
// - Communicators are non-blocking. What a group has given is on its stream when ncclCommGetAsyncError no longer says
//   ncclInProgress; an event that is recorded before is reported.
// - An operation ends when all ranks have come to it. Sums are ((r0 + r1) + r2) + …, each step rounded to the data's
//   type. Copies and fills of the CUDA runtime behind an unfinished operation are made later. A kernel behind it blocks
//   the thread that launches it until the operation ends or its communicator is aborted or revoked; the results of what
//   an abort ends are NaN.
// - Calls that differ among the ranks are the asynchronous error ncclInvalidUsage on all of them, and
//   ncclGetLastError() has the calls. Wrong use is an error, and is reported: memory that is freed, not allocated or on
//   another device, a stream of another device, calls while something is in progress.
// - What is launched on a stream that is captured becomes part of the graph, once all ranks have come to it: until
//   then ncclCommGetAsyncError says ncclInProgress. Each replay calls it again, in the order of launches. The replay
//   goes on when all ranks have come to it, and blocks no thread. A communicator that ends before the graph is
//   reported.
// - Not there: blocking communicators, send and receive. They are refused or have no function.
//
// Whole launches: BUILD/tests/fake_gpus holds the libraries of a machine with GPUs, NVML included:
//
//   LD_LIBRARY_PATH=BUILD/tests/fake_gpus DTRAIN_FAKE_GPUS=4 dtrain launch experiment.yaml
//
// The CUDA runtime is not in that folder: libtorch's CPU library needs the real one. Who looks up functions in the
// handle of libtorch_cuda.so gets the fake's (comm/nccl/nccl_api.cpp does).
//
// - DTRAIN_FAKE_GPUS: how many GPUs the host has, 0 to 16. harness/fake_gpu_names.h has their names.
// - DTRAIN_FAKE_GPU_MIB: the memory of each, 4,096 by default.
// - CUDA_VISIBLE_DEVICES: which of them the process sees. Indices or UUIDs, as CUDA reads it.
// - DTRAIN_FAKE_GPU_LOG: a folder. Each process writes rankR-PID.reports there, a line for each different report, and
//   rankR-PID.counts.json, all counts since it began. R is DTRAIN_RANK, or nothing where that is not set. Both files
//   are up to date at any time, also after SIGKILL.
// - DTRAIN_FAKE_GPU_FAULT: a fault, counted from the start of the process.
//     allocation:N    the N-th allocation of device memory fails: by libtorch, cudaMalloc or ncclMemAlloc
//     lost:N[:CODE]   the N-th operation is the last of its device. From then on calls fail with that CUDA error; 719
//                     is the default, others are 46, 214, 700, 710
//     nccl_error:N    the N-th operation of NCCL does not end. From then on communicators have the asynchronous error
//                     ncclRemoteError
//     nccl_hang:N     the N-th operation of NCCL does not end
// - DTRAIN_FAKE_GPU_FAULT_RANK: the rank that has the fault (its DTRAIN_RANK). Without it all ranks have it.
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
  std::int64_t graph_launches = 0;    // each stands for all that is in the graph
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
  // The n-th operation (kernel, copy, of NCCL) from now on is the last of its device: all that follows there throws
  // c10::AcceleratorError.
  virtual void lose_device(int n) = 0;
  // The n-th operation of NCCL from now on never ends; fail_nccl: and from then on all communicators of the process
  // have the asynchronous error ncclRemoteError.
  virtual void hang_nccl(int n) = 0;
  virtual void fail_nccl(int n) = 0;
  // No more faults: lost devices are back, captures under way and unfinished operations are abandoned, and the host
  // knows that all streams are done. Counts and reports stay.
  virtual void heal() = 0;

  // Capture on the calling thread's current stream, which must not be the default stream, in the mode
  // cudaStreamCaptureModeThreadLocal. Errors are those of CUDA.
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

// How many devices there are is decided when the library is opened first: DTRAIN_FAKE_GPUS, else `devices`. Open it
// after a fork, not before: device memory is shared memory. DTRAIN_FAKE_GPU_DELAYED_QUERIES is for
// delay_queries().
inline FakeGpus& open_fake_gpus(const std::string& library, int devices) {
  ::setenv("DTRAIN_FAKE_GPUS", std::to_string(devices).c_str(), 0);
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const function = handle == nullptr ? nullptr : ::dlsym(handle, kFakeGpusFunction);
  if (function == nullptr) throw std::runtime_error(::dlerror());
  return *reinterpret_cast<FakeGpusFunction*>(function)();
}

}  // namespace dtrain::test
