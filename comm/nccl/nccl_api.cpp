#include "nccl/nccl_api.h"

#include <dlfcn.h>

#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::comm {
namespace {

constexpr const char* kRemedy =
    "get libtorch with the GPU libraries (dtrain-get-libtorch --flavour full), or put the library's folder into "
    "LD_LIBRARY_PATH";

class Library {
 public:
  Library(const std::vector<std::string>& names, const std::vector<std::string>& folders) {
    std::string all, why;
    for (const std::string& name : names) {
      if (open(name, name, why)) return;
      for (const std::string& folder : folders) {
        const std::string path = folder + "/" + name;
        std::error_code code;
        if (std::filesystem::exists(path, code) && open(name, path, why)) return;
      }
      all += (all.empty() ? "" : " or ") + name;
    }
    throw CommError("the nccl backend needs " + all + ", which cannot be opened: " + why, kRemedy);
  }
  // Looks first in libtorch's CUDA part and its libraries, if the process has them: libtorch's CPU part also opens a
  // CUDA runtime of that name, which need not be the runtime that computes.
  template <class Function>
  bool find(const char* function, std::function<Function>& into) const {
    void* const libtorch = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    auto* address = reinterpret_cast<Function*>(libtorch ? ::dlsym(libtorch, function) : nullptr);
    if (!address) address = reinterpret_cast<Function*>(::dlsym(handle_, function));
    if (address) into = address;
    return address != nullptr;
  }
  template <class Function>
  void get(const char* function, std::function<Function>& into) const {
    if (find(function, into)) return;
    throw CommError(name_ + " has no " + function + ": it is of a version that the nccl backend does not know",
                    kRemedy);
  }

 private:
  bool open(const std::string& name, const std::string& path, std::string& why) {
    name_ = name;
    handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) why += (why.empty() ? "" : "; ") + std::string(::dlerror());
    return handle_ != nullptr;
  }

  std::string name_;
  void* handle_ = nullptr;  // never closed: both libraries have threads and handlers of their own
};

}  // namespace

NcclLibraries nccl_libraries() {
  static const char inside_this_library = 0;
  const std::string here = library_folder(&inside_this_library).string();
  NcclLibraries libraries;
  libraries.nccl_folders = {here};
  libraries.cuda_folders = {here};
  // The wheels of an installation, of Python's site-packages (this folder is dtrain/lib), and of the checkout
  // (build/PRESET/lib). A process with libtorch's CUDA part has both libraries already, and finds them by name.
  const std::vector<std::string> wheels{here + "/dtrain/libtorch", here + "/../..", here + "/../../../.deps/libtorch"};
  for (const std::string& wheel : wheels) {
    libraries.nccl_folders.push_back(wheel + "/nvidia/nccl/lib");
    for (const char* const cuda : {"cu13", "cuda_runtime"}) {  // the wheels of CUDA 13 and of CUDA 12
      libraries.cuda_folders.push_back(wheel + "/nvidia/" + cuda + "/lib");
    }
  }
  return libraries;
}

SharedNcclApi open_nccl(const NcclLibraries& libraries) {
  const Library cuda(libraries.cuda, libraries.cuda_folders);
  const Library nccl(libraries.nccl, libraries.nccl_folders);
  const auto api = std::make_shared<NcclApi>();
#define DTRAIN_GET(name) nccl.get(#name, api->name);
#define DTRAIN_FIND(name) nccl.find(#name, api->name);
#define DTRAIN_GET_CUDA(name, ...) cuda.get(#name, api->name);
  DTRAIN_NCCL_FUNCTIONS(DTRAIN_GET)
  DTRAIN_NCCL_NEWER_FUNCTIONS(DTRAIN_FIND)
  DTRAIN_CUDA_FUNCTIONS(DTRAIN_GET_CUDA)
#undef DTRAIN_GET
#undef DTRAIN_FIND
#undef DTRAIN_GET_CUDA
  return api;
}

std::string nccl_version_text(int code) {
  return std::to_string(code / 10'000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

int checked_nccl_version(const NcclApi& api) {
  int version = 0;
  check_nccl(api, api.ncclGetVersion(&version), "asking NCCL for its version");
  if (version < kOldestNccl) {
    throw CommError("NCCL is " + (version < 10'000 ? std::to_string(version) : nccl_version_text(version)) +
                        ", and the nccl backend needs " + nccl_version_text(kOldestNccl) + " or later",
                    kRemedy);
  }
  return version;
}

void check_cuda(const NcclApi& api, cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw CommError(std::string(what) + ": CUDA reports: " + api.cudaGetErrorString(result));
}

void check_nccl(const NcclApi& api, ncclResult_t result, const char* what, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  std::string text = std::string(what) + ": NCCL reports: " + api.ncclGetErrorString(result);
  const char* const last = api.ncclGetLastError(comm);
  if (last && *last) text += std::string(" (") + last + ")";
  throw CommError(text);
}

}  // namespace dtrain::comm
