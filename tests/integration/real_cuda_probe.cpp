// Opens the real libtorch_cuda, NCCL, the CUDA runtime and dtrain's modules as a rank does, and prints what they say of
// themselves as one JSON object (real_cuda.py). On a machine without a driver, libraries that are made of names alone
// stand in for those that are missing.
//
//   real_cuda_probe LIBTORCH_CUDA|"" LIBNCCL LIBCUDART [MODULE ...]
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <string>

#include "nccl/nccl_api.h"

#include <nlohmann/json.hpp>

namespace {

using Json = nlohmann::ordered_json;

std::string open_for_good(const char* file) {
  return ::dlopen(file, RTLD_NOW | RTLD_GLOBAL) ? "" : ::dlerror();
}

bool has_cuda_kernel(const char* name, const char* overload) {
  const auto schema = c10::Dispatcher::singleton().findSchema({name, overload});
  return schema && schema->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// The hooks must not be asked before the library is opened: they are looked up once.
Json ask_libtorch() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  return {{"cuda", hooks.versionCUDART()},
          {"cudnn", hooks.compiledWithCuDNN()},
          {"has_cuda", hooks.hasCUDA()},
          {"gpus", static_cast<int>(hooks.deviceCount())},
          {"kernels",
           {{"add", has_cuda_kernel("aten::add", "Tensor")},
            {"convolution", has_cuda_kernel("aten::cudnn_convolution", "")},
            {"fused_adamw", has_cuda_kernel("aten::_fused_adamw_", "tensor_lr")}}}};
}

// Operations that wait on the host can be made errors (DTRAIN_SYNC_DEBUG): this object of libc10_cuda holds an enum
// class, 2 for errors, and this function is what such operations call.
Json ask_sync_debug() {
  auto* const mode = static_cast<int*>(::dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
  auto* const wait = reinterpret_cast<void (*)()>(::dlsym(RTLD_DEFAULT, "_ZN3c104cuda21warn_or_error_on_syncEv"));
  if (!mode || !wait) return "no such symbol";
  if (*mode != 0) return "it is on already";
  *mode = 2;
  try {
    wait();
  } catch (const c10::Error& error) {
    *mode = 0;
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

Json ask_nccl(const std::string& nccl, const std::string& cuda) {
  const dtrain::comm::SharedNcclApi api =
      dtrain::comm::open_nccl({.nccl = {nccl}, .cuda = {cuda}, .nccl_folders = {}, .cuda_folders = {}});
  int gpus = 0;
  return {{"version", dtrain::comm::checked_nccl_version(*api)},
          {"shrink", static_cast<bool>(api->ncclCommShrink)},
          {"revoke", static_cast<bool>(api->ncclCommRevoke)},
          {"success", api->ncclGetErrorString(ncclSuccess)},
          {"device_count", static_cast<int>(api->cudaGetDeviceCount(&gpus))}};
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  Json report;
  try {
    if (*arguments[1]) {
      report["libtorch_cuda"] = open_for_good(arguments[1]);
      if (report["libtorch_cuda"] == "") report["libtorch"] = ask_libtorch();
      report["sync_debug"] = ask_sync_debug();
    }
    report["nccl"] = ask_nccl(arguments[2], arguments[3]);
    report["modules"] = Json::object();
    for (int i = 4; i < count; ++i) report["modules"][arguments[i]] = open_for_good(arguments[i]);
  } catch (const std::exception& error) {
    report["error"] = error.what();
  }
  std::printf("%s\n", report.dump().c_str());
  std::fflush(stdout);
  ::_exit(report.contains("error") ? 1 : 0);  // the libraries' destructors wait for a driver
}
