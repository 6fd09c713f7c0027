// The text of a record while it is put together.
#pragma once

#include <iterator>
#include <utility>

#include <spdlog/fmt/compile.h>
#include <spdlog/fmt/fmt.h>

namespace dtrain::profile {

using LineBuffer = fmt::memory_buffer;

// Appends; the arguments are those of fmt::format_to.
template <typename... Args>
void put(LineBuffer& out, Args&&... args) {
  fmt::format_to(std::back_inserter(out), std::forward<Args>(args)...);
}

}  // namespace dtrain::profile
