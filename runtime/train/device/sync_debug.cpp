#include "device/sync_debug.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

constexpr const char* kVariable = "DTRAIN_SYNC_DEBUG";
// The static object of c10::cuda::warning_state() in libc10_cuda.so, which is an enum: 0 for nothing, 2 for errors.
constexpr const char* kWarningState = "_ZZN3c104cuda13warning_stateEvE14warning_state_";
constexpr int kNothing = 0;
constexpr int kError = 2;

}  // namespace

SyncDebug::SyncDebug(c10::Device device) {
  const char* const value = std::getenv(kVariable);
  const std::string wanted = value == nullptr ? "" : value;
  if (wanted.empty() || wanted == "off") return;
  if (wanted != "error") {
    throw ConfigError(std::string("environment: ") + kVariable + " is '" + wanted + "'", "use error or off");
  }
  if (device.is_cpu()) return;
  mode_ = static_cast<int*>(::dlsym(RTLD_DEFAULT, kWarningState));
  if (mode_ == nullptr) {
    throw ConfigError(
        std::string("environment: ") + kVariable + ": this libtorch has no switch for operations that wait for the GPU",
        "use the libtorch that dtrain is built for, or leave the variable out");
  }
}

SyncDebug::Scope::Scope(SyncDebug& debug, std::int64_t batch) {
  if (debug.mode_ == nullptr || batch < kFirstBatch) return;
  mode_ = debug.mode_;
  *mode_ = kError;
}

SyncDebug::Scope::~Scope() {
  if (mode_ != nullptr) *mode_ = kNothing;
}

}  // namespace dtrain::train
