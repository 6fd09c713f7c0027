// How does the library become libtorch's CUDA when it is opened, and what may a test ask of it?
#include "harness/fake_gpu.h"

#include <cstdio>
#include <mutex>

#include <ATen/core/LegacyTypeDispatch.h>

#include "allocators.h"
#include "environment.h"
#include "guard.h"
#include "kernels.h"
#include "launch.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

class Gpus final : public FakeGpus {
 public:
  FakeGpuCounts take_counts() override {
    const std::scoped_lock lock(machine().mutex);
    return machine().report.take_counts();
  }
  std::vector<std::string> take_reports() override {
    const std::scoped_lock lock(machine().mutex);
    return machine().report.take_texts();
  }

  void delay_queries(int queries) override {
    const std::scoped_lock lock(machine().mutex);
    machine().adversaries.delayed_queries = queries;
  }
  void fail_allocation(int n) override {
    const std::scoped_lock lock(machine().mutex);
    machine().adversaries.fail_allocation(n);
  }
  void lose_device(int n) override {
    constexpr int kLaunchFailure = 719;
    const std::scoped_lock lock(machine().mutex);
    machine().adversaries.lose_device(n, kLaunchFailure);
  }
  void fail_nccl(int n) override {
    const std::scoped_lock lock(machine().mutex);
    machine().adversaries.fail_nccl(n);
  }
  void hang_nccl(int n) override {
    const std::scoped_lock lock(machine().mutex);
    machine().adversaries.hang_nccl(n);
  }
  void heal() override {
    const std::scoped_lock lock(machine().mutex);
    machine().adversaries.heal();
    machine().graphs.abandon();
    machine().unfinished.abandon_all();
    for (int d = 0; d < machine().devices; ++d) {
      machine().streams.for_each(static_cast<c10::DeviceIndex>(d),
                                 [](const Stream& stream) { machine().streams.learn(stream.clock); });
    }
  }

  void begin_capture() override { static_cast<void>(machine().graphs.begin(CaptureMode::kThreadLocal)); }
  int end_capture() override { return machine().graphs.end(); }
  void replay(int graph) override { machine().graphs.replay(graph); }
  void destroy_graph(int graph) override { machine().graphs.destroy(graph); }

  void launch(void* stream, const std::string& what, std::span<const FakeGpuMemory> reads,
              std::span<const FakeGpuMemory> writes, std::function<void()> body) override {
    std::unique_lock lock(machine().mutex);
    Launch launch(machine().streams.from_native(stream), machine().report.keep(what));
    lock.unlock();
    const auto range = [](const FakeGpuMemory& memory) {
      const auto begin = reinterpret_cast<std::uintptr_t>(memory.data);
      return Range{begin, begin + memory.bytes};
    };
    for (const FakeGpuMemory& memory : reads) launch.uses(range(memory), false);
    for (const FakeGpuMemory& memory : writes) launch.uses(range(memory), true);
    launch.begin(&FakeGpuCounts::kernels);
    body();
    if (launch.captured()) launch.record([body](const Access&) { body(); });
  }
  void* alias(const void* data) override { return machine().memory.alias(data); }
};

bool open_library() {
  c10::SetAllocator(c10::kCUDA, device_allocator(), 1);
  at::setHostAllocator(c10::kCUDA, pinned_allocator(), 1);
  register_guard();
  register_kernels();
  register_sparse_kernels();
  install_fault_handler();
  return true;
}
// Runs when the library is opened.
const bool registered = [] {
  try {
    machine();
    return open_library();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fake GPU: %s\n", error.what());
    std::abort();
  }
}();

}  // namespace

Machine& machine() {
  static Machine& the = *[] {
    std::vector<int> gpus = visible_gpus(number_from("DTRAIN_FAKE_GPUS", 1, kMaxDevices));
    const auto devices = static_cast<int>(gpus.size());
    const auto bytes = static_cast<std::size_t>(number_from("DTRAIN_FAKE_GPU_MIB", 4096, 1 << 17)) << 20;
    return new Machine{.gpus = std::move(gpus), .devices = devices, .memory = Memory(devices, bytes)};
  }();
  return the;
}

}  // namespace dtrain::test::fake_gpu

extern "C" dtrain::test::FakeGpus* dtrain_fake_gpus() {
  static auto* const gpus = new dtrain::test::fake_gpu::Gpus;
  return gpus;
}
