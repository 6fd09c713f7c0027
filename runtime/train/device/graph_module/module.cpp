// The module exports one function, which makes a graph by libtorch's class for CUDA graphs.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

#include "device/device_graph.h"

namespace {

// CUDA refuses calls that could spoil a capture (CUDA runtime API, cudaStreamBeginCapture()):
//
// - Always, on any thread: waits for a captured stream, for an event recorded there, or for the whole device.
// - In this mode, on the capturing thread: also waits for other streams and events, and calls such as cudaMalloc().
// - In the global mode: the same calls on every thread. The watchdog of the nccl backend queries events from a separate
//   thread all the time, so its next query would end a capture in that mode.
// - In the relaxed mode: none of these calls. A step's wait for other streams would go unnoticed.
//
// The stream, not the mode, decides which threads record. So libtorch's thread for backward records into the graph in
// any mode, because it works on the stream of forward.
constexpr cudaStreamCaptureMode kMode = cudaStreamCaptureModeThreadLocal;

class Captured final : public at::cuda::CUDAGraph {
 public:
  void begin() {
    or_let_go([this] { capture_begin({0, 0}, kMode); });  // {0, 0}: a separate memory pool
  }
  void end() {
    or_let_go([this] { capture_end(); });
  }

 private:
  template <class Call>
  void or_let_go(const Call& call) {
    try {
      call();
    } catch (...) {
      let_go(*this);
      throw;
    }
  }
  // Resets the state that libtorch does not reset if CUDA refuses the capture. Otherwise its allocators would ask this
  // object, after its destruction, which pool an allocation belongs to. In libtorch 2.11 the next random number outside
  // of a graph would also be an error.
  template <class Self>
  static void let_go(Self& self) {
    for (auto& [generator, increment] : self.captured_generator_states_) {
      if constexpr (requires { generator->capturing_; }) generator->capturing_ = false;  // later ones ask the stream
    }
    if constexpr (requires { self.allocated_pool_; }) return;  // 2.14 and later: reset() gives the pools back
    if (self.capture_ended_) return;                           // reset() gives the pools back
    at::HostAllocator* const pinned = at::getHostAllocator(at::kCUDA);
    or_not([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(self.capture_dev_, self.mempool_id_); });
    or_not([&] { c10::cuda::CUDACachingAllocator::releasePool(self.capture_dev_, self.mempool_id_); });
    or_not([&] { pinned->end_allocate_to_pool(self.mempool_id_); });
    or_not([&] { pinned->release_pool(self.mempool_id_); });
  }
  // Ignores errors: the pool's use had not begun, or had ended.
  template <class Call>
  static void or_not(const Call& call) {
    try {
      call();
    } catch (const std::exception&) {
    }
  }
};

class CudaGraph final : public dtrain::train::DeviceGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph() override {
    if (!capturing_) return;
    try {
      graph_.end();
    } catch (const c10::Error&) {  // the capture is discarded
    }
  }
  CudaGraph& operator=(CudaGraph&&) = delete;

  void begin_capture() override {
    graph_.begin();
    capturing_ = true;
  }
  void end_capture() override {
    capturing_ = false;
    graph_.end();
  }
  void replay() override { graph_.replay(); }

 private:
  Captured graph_;
  bool capturing_ = false;
};

}  // namespace

extern "C" int dtrain_cuda_graph_make(int abi, std::unique_ptr<dtrain::train::DeviceGraph>& made) {
  if (abi != dtrain::train::kDeviceGraphAbi) return dtrain::train::kDeviceGraphAbi;
  made = std::make_unique<CudaGraph>();
  return 0;
}
