// What libtorch's errors about a GPU mean for the user: it is out of memory, lost, or taken. Plain functions.
#pragma once

#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

// `error` in words for users, without libtorch's stack; where it is about a GPU, with what was asked for, what is free
// and what to do.
Error device_error(const c10::Error& error, c10::Device device);

// Whether a GPU has failed for this process: nothing works there any more. False for the CPU.
bool has_failed(c10::Device device);
// Such a GPU's error, in which something that used it has ended with `what`.
Error failed_device(c10::Device device, const std::string& what);

// Throws device_error() of the c10::Error that is being handled, behind "`what`: ".
[[noreturn]] void rethrow_device_error(c10::Device device, const std::string& what);

}  // namespace dtrain::train
