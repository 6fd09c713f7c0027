// NVIDIA's management library (NVML), which comes with the driver: opened by its name, started, and stopped again. Its
// calls can take long, and forever where a driver hangs. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nvml_abi.h"

namespace dtrain::host {

class NvmlSession {
 public:
  // Opens the library; without it opened() is false, and nothing else may be called.
  explicit NvmlSession(const std::string& library);
  ~NvmlSession();
  NvmlSession(const NvmlSession&) = delete;
  NvmlSession& operator=(const NvmlSession&) = delete;

  bool opened() const { return library_ != nullptr; }
  // Whether it has what count() and handle() need.
  bool complete() const { return init_ && count_ && handle_; }
  // These return NVML's codes: nvml::kSuccess, or what text() describes.
  int start();
  int count(unsigned* count) const { return count_(count); }
  int handle(unsigned index, nvml::Device* device) const { return handle_(index, device); }
  std::string text(int code) const;

  // Null where this version of the library does not have it.
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  struct Close {
    void operator()(void* library) const;
  };
  void* symbol(const char* name) const;

  std::unique_ptr<void, Close> library_;
  bool started_ = false;
  nvml::Init* init_ = nullptr;
  nvml::Shutdown* shutdown_ = nullptr;
  nvml::ErrorString* error_string_ = nullptr;
  nvml::DeviceGetCount* count_ = nullptr;
  nvml::DeviceGetHandleByIndex* handle_ = nullptr;
};

// The processes that compute on a GPU, as many as there are. Returns NVML's code.
int running_processes(nvml::DeviceGetComputeRunningProcesses& call, nvml::Device device,
                      std::vector<nvml::ProcessInfo>& processes);

}  // namespace dtrain::host
