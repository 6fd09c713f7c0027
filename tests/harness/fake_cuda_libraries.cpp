// Stands in for libcuda.so.1, libcudart.so.13, libnccl.so.2 and libtorch_cuda.so where a program only opens them and
// asks for versions and the number of GPUs, as `dtrain doctor` does. The variable DTRAIN_FAKE_CUDA says what they
// answer: "driver=12040 runtime=13000 nccl=22809 gpus=2 error=802"; what is not in it is as on a machine with two GPUs
// where all is well. Declared here as NVIDIA documents it, not with dtrain's own declarations.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace {

int setting(const std::string& name, int otherwise) {
  const char* const all = std::getenv("DTRAIN_FAKE_CUDA");
  std::istringstream words(all ? all : "");
  std::string word;
  while (words >> word) {
    if (word.starts_with(name + "=")) return std::stoi(word.substr(name.size() + 1));
  }
  return otherwise;
}

}  // namespace

extern "C" {

typedef int CUresult;
typedef int cudaError_t;
typedef int ncclResult_t;

CUresult cuDriverGetVersion(int* driverVersion) {
  *driverVersion = setting("driver", 13000);
  return 0;
}

CUresult cuInit(unsigned int) {
  return 100;  // CUDA_ERROR_NO_DEVICE
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int* symbolStatus) {
  static constexpr auto refuse = +[]() -> CUresult { return 100; };
  *function = reinterpret_cast<void*>(refuse);
  if (std::strcmp(symbol, "cuDriverGetVersion") == 0) *function = reinterpret_cast<void*>(cuDriverGetVersion);
  if (std::strcmp(symbol, "cuGetProcAddress") == 0) *function = reinterpret_cast<void*>(cuGetProcAddress_v2);
  if (symbolStatus) *symbolStatus = 0;
  return 0;
}

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  *runtimeVersion = setting("runtime", 13000);
  return 0;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = setting("gpus", 2);
  return setting("error", 0);
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == 802 ? "system not yet initialized" : "some error";
}

ncclResult_t ncclGetVersion(int* version) {
  *version = setting("nccl", 22809);
  return 0;
}

}  // extern "C"
