// The functions of NCCL and of the CUDA runtime that the backend calls, as a table: open_nccl() fills it from the
// libraries, tests with their own functions. No library is linked. The made table does not change; any thread.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/nccl.h"

namespace dtrain::comm {

// X(function): functions that every supported version has.
// clang-format off
#define DTRAIN_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion) X(ncclGetUniqueId) X(ncclGetErrorString) X(ncclGetLastError) \
  X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy) \
  X(ncclCommAbort) X(ncclMemAlloc) X(ncclMemFree) X(ncclCommRegister) \
  X(ncclCommDeregister) X(ncclRedOpCreatePreMulSum) X(ncclRedOpDestroy) X(ncclReduce) \
  X(ncclBroadcast) X(ncclAllReduce) X(ncclReduceScatter) X(ncclAllGather) \
  X(ncclGroupStart) X(ncclGroupEnd)
// clang-format on
// The members are empty if the library lacks these functions.
#define DTRAIN_NCCL_NEWER_FUNCTIONS(X) X(ncclCommRevoke) X(ncclCommShrink)
// X(function, type): the header overloads some functions, so decltype cannot give their types.
#define DTRAIN_CUDA_FUNCTIONS(X)                                                            \
  X(cudaGetErrorString, const char*(cudaError_t))                                           \
  X(cudaGetDeviceCount, cudaError_t(int*))                                                  \
  X(cudaGetDevice, cudaError_t(int*))                                                       \
  X(cudaSetDevice, cudaError_t(int))                                                        \
  X(cudaPointerGetAttributes, cudaError_t(cudaPointerAttributes*, const void*))             \
  X(cudaDeviceGetStreamPriorityRange, cudaError_t(int*, int*))                              \
  X(cudaStreamCreateWithPriority, cudaError_t(cudaStream_t*, unsigned int, int))            \
  X(cudaStreamDestroy, cudaError_t(cudaStream_t))                                           \
  X(cudaStreamWaitEvent, cudaError_t(cudaStream_t, cudaEvent_t, unsigned int))              \
  X(cudaEventCreateWithFlags, cudaError_t(cudaEvent_t*, unsigned int))                      \
  X(cudaEventDestroy, cudaError_t(cudaEvent_t))                                             \
  X(cudaEventRecord, cudaError_t(cudaEvent_t, cudaStream_t))                                \
  X(cudaEventQuery, cudaError_t(cudaEvent_t))                                               \
  X(cudaEventElapsedTime, cudaError_t(float*, cudaEvent_t, cudaEvent_t))                    \
  X(cudaMemcpyAsync, cudaError_t(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t)) \
  X(cudaMemsetAsync, cudaError_t(void*, int, size_t, cudaStream_t))                         \
  X(cudaMalloc, cudaError_t(void**, size_t))                                                \
  X(cudaFree, cudaError_t(void*))                                                           \
  X(cudaHostAlloc, cudaError_t(void**, size_t, unsigned int))                               \
  X(cudaFreeHost, cudaError_t(void*))

struct NcclApi {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define DTRAIN_MEMBER(name) std::function<std::remove_pointer_t<decltype(&::name)>> name;
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define DTRAIN_TYPED_MEMBER(name, ...) std::function<__VA_ARGS__> name;
  DTRAIN_NCCL_FUNCTIONS(DTRAIN_MEMBER)
  DTRAIN_NCCL_NEWER_FUNCTIONS(DTRAIN_MEMBER)
  DTRAIN_CUDA_FUNCTIONS(DTRAIN_TYPED_MEMBER)
#undef DTRAIN_MEMBER
#undef DTRAIN_TYPED_MEMBER
};

using SharedNcclApi = std::shared_ptr<const NcclApi>;

// The search for the libraries: each name as the dynamic linker finds it, then in each folder. The first library that
// can be opened is taken.
struct NcclLibraries {
  std::vector<std::string> nccl{"libnccl.so.2"};
  std::vector<std::string> cuda{"libcudart.so.13", "libcudart.so.12"};  // whichever libtorch is built for
  std::vector<std::string> nccl_folders;
  std::vector<std::string> cuda_folders;
};
// Adds this library's folder, and those where dtrain-get-libtorch and scripts/setup.sh put libtorch's wheels.
NcclLibraries nccl_libraries();

// Opens the libraries for good. CommError names the library that cannot be opened or the function that it lacks.
SharedNcclApi open_nccl(const NcclLibraries& libraries = nccl_libraries());

inline constexpr int kOldestNccl = NCCL_VERSION(2, 28, 0);
std::string nccl_version_text(int code);  // "2.28.9"
// Returns the library's version; CommError if it is too old.
int checked_nccl_version(const NcclApi& api);

// CommError "what: reason" unless the result is success (for NCCL also: a call that goes on in the background).
void check_cuda(const NcclApi& api, cudaError_t result, const char* what);
void check_nccl(const NcclApi& api, ncclResult_t result, const char* what, ncclComm_t comm = nullptr);

// Makes the communicator with a given table of functions: the libraries', or a test's.
std::unique_ptr<NcclCommunicator> make_nccl_communicator_with(SharedNcclApi api, ControlPlane& control,
                                                              const NcclOptions& nccl,
                                                              const CommunicatorOptions& options);

}  // namespace dtrain::comm
