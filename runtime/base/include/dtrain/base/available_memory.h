// The memory that this host has left for new data.
#pragma once

#include <cstddef>
#include <optional>

namespace dtrain {

// Returns the bytes that the kernel reports as available, at most those that the limits of the control groups leave.
// Empty: the kernel does not report them.
std::optional<std::size_t> available_memory();

}  // namespace dtrain
