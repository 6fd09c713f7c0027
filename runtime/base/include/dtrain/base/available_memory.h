// How much memory this host has left for new data.
#pragma once

#include <cstddef>
#include <optional>

namespace dtrain {

// Bytes: what the kernel calls available, at most the limit of the control group. Empty where the kernel does not say.
std::optional<std::size_t> available_memory();

}  // namespace dtrain
