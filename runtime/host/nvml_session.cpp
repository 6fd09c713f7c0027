#include "nvml_session.h"

#include <dlfcn.h>

namespace dtrain::host {

void NvmlSession::Close::operator()(void* library) const {
  ::dlclose(library);
}

NvmlSession::NvmlSession(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) return;
  find("nvmlInit_v2", init_);
  find("nvmlShutdown", shutdown_);
  find("nvmlErrorString", error_string_);
  find("nvmlDeviceGetCount_v2", count_);
  find("nvmlDeviceGetHandleByIndex_v2", handle_);
}

NvmlSession::~NvmlSession() {
  if (started_ && shutdown_) shutdown_();
}

void* NvmlSession::symbol(const char* name) const {
  return ::dlsym(library_.get(), name);
}

int NvmlSession::start() {
  const int code = init_();
  started_ = code == nvml::kSuccess;
  return code;
}

std::string NvmlSession::text(int code) const {
  const char* const reason = error_string_ ? error_string_(code) : nullptr;
  return reason ? reason : "NVML error " + std::to_string(code);
}

int running_processes(nvml::DeviceGetComputeRunningProcesses& call, nvml::Device device,
                      std::vector<nvml::ProcessInfo>& processes) {
  processes.resize(64);
  auto count = static_cast<unsigned>(processes.size());
  int code = call(device, &count, processes.data());
  if (code == nvml::kInsufficientSize) {
    processes.resize(count + 64);  // more processes may start meanwhile
    count = static_cast<unsigned>(processes.size());
    code = call(device, &count, processes.data());
  }
  if (count < processes.size()) processes.resize(count);
  return code;
}

}  // namespace dtrain::host
