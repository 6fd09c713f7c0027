// What do the functions of libtorch's CUDA graph do, and of its allocator, that dtrain's module for graphs calls?
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <torch/version.h>

#include <mutex>
#include <set>

#include "allocators.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

// Pools of memory that libtorch's allocator still takes memory from for a capture, by the graph's number.
std::set<c10::CaptureId_t>& open_pools() {
  static auto& pools = *new std::set<c10::CaptureId_t>;
  return pools;
}

CaptureMode mode_of(cudaStreamCaptureMode mode) {
  switch (mode) {
    case cudaStreamCaptureModeThreadLocal:
      return CaptureMode::kThreadLocal;
    case cudaStreamCaptureModeRelaxed:
      return CaptureMode::kRelaxed;
    default:
      return CaptureMode::kGlobal;
  }
}

// libtorch's own interface of its allocator. Memory comes from device_allocator().
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a body for what nobody calls
#define DTRAIN_NOT_THERE                                                 \
  override {                                                             \
    TORCH_CHECK(false, "the fake GPU's allocator has no such function"); \
  }
struct Pools final : c10::cuda::CUDACachingAllocator::CUDAAllocator {
  using Index = c10::DeviceIndex;
  using Id = c10::MempoolId_t;

  void endAllocateToPool(Index, Id pool) override {
    const std::scoped_lock lock(machine().mutex);
    TORCH_CHECK(open_pools().erase(pool.first) == 1, "endAllocatePool: not currently recording to mempool_id");
  }
  void releasePool(Index, Id) override {}

  c10::DataPtr allocate(std::size_t bytes) override { return device_allocator()->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return device_allocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    device_allocator()->copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  std::string name() override { return "fake"; }
  std::pair<std::size_t, std::size_t> getMemoryInfo(Index device) override {
    return device_allocator()->getMemoryInfo(device);
  }
  void emptyCache(Id) DTRAIN_NOT_THERE;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Index) DTRAIN_NOT_THERE;
  void resetAccumulatedStats(Index) DTRAIN_NOT_THERE;
  void resetPeakStats(Index) DTRAIN_NOT_THERE;
  void* raw_alloc(std::size_t) DTRAIN_NOT_THERE;
  void* raw_alloc_with_stream(std::size_t, cudaStream_t) DTRAIN_NOT_THERE;
  void raw_delete(void*) DTRAIN_NOT_THERE;
  void init(int) DTRAIN_NOT_THERE;
  double getMemoryFraction(Index) DTRAIN_NOT_THERE;
  void setMemoryFraction(double, Index) DTRAIN_NOT_THERE;
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(Index) DTRAIN_NOT_THERE;
  void enable(bool) DTRAIN_NOT_THERE;
  bool isEnabled() const DTRAIN_NOT_THERE;
  void cacheInfo(Index, std::size_t*) DTRAIN_NOT_THERE;
  void* getBaseAllocation(void*, std::size_t*) DTRAIN_NOT_THERE;
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) DTRAIN_NOT_THERE;
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(Id, bool) DTRAIN_NOT_THERE;
  void beginAllocateToPool(Index, Id, std::function<bool(cudaStream_t)>) DTRAIN_NOT_THERE;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void*) DTRAIN_NOT_THERE;
  std::shared_ptr<void> getIpcDevPtr(std::string) DTRAIN_NOT_THERE;
  void recordHistory(bool, c10::cuda::CUDACachingAllocator::CreateContextFn, std::size_t,
                     c10::cuda::CUDACachingAllocator::RecordContext, bool,
                     const std::vector<std::string>&) DTRAIN_NOT_THERE;
  void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver) DTRAIN_NOT_THERE;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  void attachOomRejectionObserver(c10::cuda::CUDACachingAllocator::OomRejectionObserver) DTRAIN_NOT_THERE;
#endif
  void attachAllocatorTraceTracker(c10::cuda::CUDACachingAllocator::AllocatorTraceTracker) DTRAIN_NOT_THERE;
  void enablePeerAccess(Index, Index) DTRAIN_NOT_THERE;
  cudaError_t memcpyAsync(void*, int, const void*, int, std::size_t, cudaStream_t, bool) DTRAIN_NOT_THERE;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(Index, Id) DTRAIN_NOT_THERE;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      Index, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>) DTRAIN_NOT_THERE;
};
#undef DTRAIN_NOT_THERE

}  // namespace

}  // namespace dtrain::test::fake_gpu

namespace c10::cuda {
// What headers of libtorch call where a function of CUDA has failed.
void c10_cuda_check_implementation(int error, const char*, const char*, unsigned int, bool) {
  if (error != 0) dtrain::test::fake_gpu::throw_cuda_error(error, "a call of libtorch's headers");
}

namespace CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{new dtrain::test::fake_gpu::Pools};
}
}  // namespace c10::cuda

namespace at::cuda {

using dtrain::test::fake_gpu::machine;

CUDAGraph::CUDAGraph(bool keep_graph)
    : capture_stream_(CUDAStream::UNCHECKED,
                      [] {
                        const std::scoped_lock lock(machine().mutex);
                        return machine().streams.current(dtrain::test::fake_gpu::current_device()).handle;
                      }()),
      keep_graph_(keep_graph) {}

void CUDAGraph::capture_begin(MempoolId_t pool, cudaStreamCaptureMode mode) {
  TORCH_CHECK(!has_graph_exec_, "This CUDAGraph instance already owns a captured graph.");
  TORCH_CHECK(pool == MempoolId_t(0, 0), "the fake GPU's graphs have pools of their own");
  const std::scoped_lock lock(machine().mutex);
  capture_id_ = static_cast<CaptureId_t>(machine().graphs.begin(dtrain::test::fake_gpu::mode_of(mode)));
  capture_dev_ = dtrain::test::fake_gpu::current_device();
  mempool_id_ = {capture_id_, 0};
  dtrain::test::fake_gpu::open_pools().insert(capture_id_);
  dtrain::test::fake_gpu::pinned_allocator()->begin_allocate_to_pool(mempool_id_, {});
}

void CUDAGraph::capture_end() {
  const std::scoped_lock lock(machine().mutex);
  machine().graphs.end();  // where it throws, the pools stay open, as in libtorch
  dtrain::test::fake_gpu::open_pools().erase(capture_id_);
  dtrain::test::fake_gpu::pinned_allocator()->end_allocate_to_pool(mempool_id_);
  capture_ended_ = has_graph_exec_ = true;
}

void CUDAGraph::replay() {
  TORCH_CHECK(capture_ended_, "Called CUDAGraph::replay without a preceding successful capture.");
  machine().graphs.replay(static_cast<int>(capture_id_));
}

void CUDAGraph::reset() {
  const std::scoped_lock lock(machine().mutex);
  // From libtorch 2.14 on, reset() ends what a capture that has failed has begun.
  [](auto& self) {
    if constexpr (requires { self.allocated_pool_; }) {
      if (dtrain::test::fake_gpu::open_pools().erase(self.capture_id_) == 0) return;
      dtrain::test::fake_gpu::pinned_allocator()->end_allocate_to_pool(self.mempool_id_);
    }
  }(*this);
  if (dtrain::test::fake_gpu::open_pools().erase(capture_id_) == 1) {
    machine().report.add("the memory of a capture that has failed was never given back to libtorch's allocator");
  }
  try {
    dtrain::test::fake_gpu::pinned_allocator()->end_allocate_to_pool(mempool_id_);
    machine().report.add("a capture that has failed was never taken back from libtorch's allocator of pinned memory");
  } catch (const c10::Error&) {  // it was
  }
  if (has_graph_exec_) machine().graphs.destroy(static_cast<int>(capture_id_));
  capture_ended_ = has_graph_exec_ = false;
}

CUDAGraph::~CUDAGraph() {
  reset();
}

}  // namespace at::cuda
