// How much memory this host has left for new data.
#pragma once

#include <cstddef>
#include <optional>

namespace dtrain {

// Bytes: what the kernel calls available, at most what the limits of the control groups leave.
// Empty where the kernel does not say.
std::optional<std::size_t> available_memory();

}  // namespace dtrain
