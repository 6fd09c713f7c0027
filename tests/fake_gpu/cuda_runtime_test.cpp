// The fake's CUDA runtime: its functions work on libtorch's streams, events and memory.
#include <dlfcn.h>
#include <torch/torch.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "gpu_ranks.h"

namespace dtrain::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <typename Function>
Function* function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(::dlopen(kFakeGpu, RTLD_NOW | RTLD_NOLOAD), name));
}

TEST(FakeCudaRuntime, EventsOrderStreamsOfLibtorch) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const comm::NcclApi& api = *rank.api;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    ASSERT_EQ(api.cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    ASSERT_EQ(api.cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    auto x = at::ones({100}, at::kCUDA);
    EXPECT_EQ(api.cudaMemsetAsync(x.data_ptr(), 0, 400, stream), cudaSuccess);
    EXPECT_THAT(rank.gpus.take_reports(),
                ElementsAre(HasSubstr("missing wait: cudaMemsetAsync on stream 1000 of cuda:0 writes what fill_")));
    x.reset();
    EXPECT_EQ(function<cudaError_t()>("cudaDeviceSynchronize")(), cudaSuccess);
    x = at::ones({100}, at::kCUDA);
    EXPECT_EQ(api.cudaEventRecord(event, nullptr), cudaSuccess);
    EXPECT_EQ(api.cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
    EXPECT_EQ(api.cudaMemsetAsync(x.data_ptr(), 0, 400, stream), cudaSuccess);
    EXPECT_EQ(api.cudaEventRecord(event, stream), cudaSuccess);
    EXPECT_EQ(api.cudaStreamWaitEvent(nullptr, event, 0), cudaSuccess);
    EXPECT_EQ(x.sum().item<float>(), 0);
    EXPECT_EQ(api.cudaEventQuery(event), cudaSuccess);
    EXPECT_EQ(api.cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(api.cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(function<cudaError_t()>("cudaGetLastError")(), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(function<cudaError_t()>("cudaGetLastError")(), cudaSuccess);
    EXPECT_EQ(api.cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(api.cudaMemsetAsync(x.data_ptr(), 0, 400, stream), cudaErrorInvalidResourceHandle);
  });
}

// As beside a libtorch for CUDA 12.
TEST(FakeCudaRuntime, TheBackendTakesTheFirstRuntimeThatIsThere) {
  expect_gpu_ranks(1, [](const GpuRank&) {
    comm::NcclLibraries libraries;
    libraries.nccl = {kFakeGpu};
    libraries.cuda = {"libcudart.so.nowhere", kFakeGpu};
    int devices = 0;
    EXPECT_EQ(comm::open_nccl(libraries)->cudaGetDeviceCount(&devices), cudaSuccess);
    EXPECT_EQ(devices, 1);
  });
}

// The process has two libraries of that name: the real one came with libtorch's CPU library, and sees no GPU.
TEST(FakeCudaRuntime, TheBackendTakesThatOfLibtorchsCudaPart) {
  void* const real = ::dlopen(comm::NcclLibraries().cuda.front().c_str(), RTLD_NOW);
  if (real == nullptr) GTEST_SKIP() << "libtorch's CPU library has brought no CUDA runtime: " << ::dlerror();
  expect_gpu_ranks(1, [](const GpuRank&) {
    comm::NcclLibraries libraries;
    libraries.nccl = {DTRAIN_BINARY_DIR "/tests/fake_gpus/libnccl.so.2"};
    const auto api = comm::open_nccl(libraries);
    int devices = 0;
    EXPECT_EQ(api->cudaGetDeviceCount(&devices), cudaSuccess);
    EXPECT_EQ(devices, 1);
    void* data = nullptr;
    EXPECT_EQ(api->ncclMemAlloc(&data, 100), ncclSuccess);
    cudaPointerAttributes attributes{};
    EXPECT_EQ(api->cudaPointerGetAttributes(&attributes, data), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    EXPECT_EQ(api->ncclMemFree(data), ncclSuccess);
  });
}

TEST(FakeCudaRuntime, EventsHaveTimes) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const comm::NcclApi& api = *rank.api;
    const auto elapsed = function<cudaError_t(float*, cudaEvent_t, cudaEvent_t)>("cudaEventElapsedTime");
    cudaEvent_t first = nullptr, last = nullptr, untimed = nullptr;
    ASSERT_EQ(api.cudaEventCreateWithFlags(&first, cudaEventDefault), cudaSuccess);
    ASSERT_EQ(api.cudaEventCreateWithFlags(&last, cudaEventDefault), cudaSuccess);
    ASSERT_EQ(api.cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
    float milliseconds = -1;
    EXPECT_EQ(elapsed(&milliseconds, first, last), cudaErrorInvalidResourceHandle);  // not recorded
    auto x = at::ones({10}, at::kCUDA);
    EXPECT_EQ(api.cudaEventRecord(first, nullptr), cudaSuccess);
    x.add_(1).mul_(2);
    EXPECT_EQ(api.cudaEventRecord(last, nullptr), cudaSuccess);
    EXPECT_EQ(api.cudaEventRecord(untimed, nullptr), cudaSuccess);
    EXPECT_EQ(elapsed(&milliseconds, first, last), cudaSuccess);
    EXPECT_GE(milliseconds, 0.00199f);  // at least a microsecond for each operation
    EXPECT_EQ(elapsed(&milliseconds, first, untimed), cudaErrorInvalidResourceHandle);
  });
}

TEST(FakeCudaRuntime, CopiesOfPinnedMemoryLandWhenTheHostWaits) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const comm::NcclApi& api = *rank.api;
    void* memory = nullptr;
    ASSERT_EQ(api.cudaHostAlloc(&memory, 400, cudaHostAllocDefault), cudaSuccess);
    auto* const host = static_cast<float*>(memory);
    std::fill(host, host + 100, 3.0f);
    auto x = at::empty({100}, at::kCUDA);
    EXPECT_EQ(api.cudaMemcpyAsync(x.data_ptr(), host, 400, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    x.add_(1);
    EXPECT_EQ(api.cudaMemcpyAsync(host, x.data_ptr(), 400, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    EXPECT_TRUE(std::isnan(host[0]));  // read too early
    EXPECT_EQ(function<cudaError_t(cudaStream_t)>("cudaStreamSynchronize")(nullptr), cudaSuccess);
    EXPECT_EQ(host[99], 4.0f);
    EXPECT_THAT(rank.gpus.take_reports(), IsEmpty());
    EXPECT_EQ(api.cudaMemcpyAsync(x.data_ptr(), host, 400, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    host[5] = 8;  // the copy may not have been made yet
    EXPECT_EQ(function<cudaError_t(cudaStream_t)>("cudaStreamSynchronize")(nullptr), cudaSuccess);
    EXPECT_THAT(rank.gpus.take_reports(),
                ElementsAre(HasSubstr("the host writes pinned memory before cudaMemcpyAsync")));
    EXPECT_EQ(api.cudaMemcpyAsync(x.data_ptr(), host, 404, cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);  // rounded up
    EXPECT_EQ(api.cudaMemcpyAsync(x.data_ptr(), host, 4000, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("which are not all allocated")));
    rank.gpus.take_counts();
    std::vector<float> pageable(100);
    EXPECT_EQ(api.cudaMemcpyAsync(pageable.data(), x.data_ptr(), 400, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    EXPECT_EQ(pageable[5], 8.0f);
    const FakeGpuCounts counts = rank.gpus.take_counts();
    EXPECT_EQ(counts.pageable_copies, 1);
    EXPECT_EQ(counts.host_syncs, 1);
    EXPECT_EQ(api.cudaFreeHost(memory), cudaSuccess);
    EXPECT_EQ(api.cudaFreeHost(memory), cudaErrorInvalidValue);
  });
}

TEST(FakeCudaRuntime, MemoryIsCountedOnce) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const comm::NcclApi& api = *rank.api;
    auto* const allocator = c10::getDeviceAllocator(at::kCUDA);
    const auto memory = [] {
      std::size_t free = 0, total = 0;
      EXPECT_EQ((function<cudaError_t(std::size_t*, std::size_t*)>("cudaMemGetInfo")(&free, &total)), cudaSuccess);
      return std::pair(free, total);
    };
    const auto [free, total] = memory();
    EXPECT_EQ(total, std::size_t{4096} << 20);
    EXPECT_EQ(free, total);
    void *of_nccl = nullptr, *of_cuda = nullptr;
    ASSERT_EQ(api.ncclMemAlloc(&of_nccl, 1 << 20), ncclSuccess);
    ASSERT_EQ(api.cudaMalloc(&of_cuda, 1 << 20), cudaSuccess);
    EXPECT_EQ(memory().first, total - (2 << 20));
    EXPECT_EQ(allocator->getDeviceStats(0).reserved_bytes[0].current, 0);
    auto x = at::empty({1 << 18}, at::kCUDA);
    EXPECT_EQ(memory().first, total - (3 << 20));
    EXPECT_EQ(allocator->getMemoryInfo(0), memory());
    EXPECT_EQ(allocator->getDeviceStats(0).allocated_bytes[0].current, 1 << 20);
    EXPECT_EQ(api.cudaFree(of_nccl), cudaErrorInvalidValue);  // it is not cudaMalloc's
    EXPECT_EQ(api.ncclMemFree(of_nccl), ncclSuccess);
    EXPECT_EQ(api.cudaFree(of_cuda), cudaSuccess);
    x.reset();
    allocator->emptyCache();
    EXPECT_EQ(memory().first, total);
    void* most = nullptr;
    EXPECT_EQ(api.cudaMalloc(&most, total + 1), cudaErrorMemoryAllocation);
    cudaPointerAttributes attributes{};
    EXPECT_EQ(api.cudaPointerGetAttributes(&attributes, of_cuda), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);  // it was freed
  });
}

}  // namespace
}  // namespace dtrain::test
