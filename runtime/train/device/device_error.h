// Explains libtorch's errors about a GPU to the user: out of memory, failed, or in use. Plain functions.
#pragma once

#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

// Returns `error` in words for users, without libtorch's stack. An error about a GPU has the requested and the free
// memory, and a remedy.
Error device_error(const c10::Error& error, c10::Device device);

// True if a GPU has failed for this process, so that all its operations fail. False for the CPU.
bool has_failed(c10::Device device);
// Returns the error of a failed GPU. `what`: the message of the operation that used it.
Error failed_device(c10::Device device, const std::string& what);

// Throws device_error() of the c10::Error that is being handled, with "`what`: " before its message.
[[noreturn]] void rethrow_device_error(c10::Device device, const std::string& what);

}  // namespace dtrain::train
