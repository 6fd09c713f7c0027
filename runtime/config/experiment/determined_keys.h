// Keys of Determined's experiment files that mean nothing here, and why: whoever brings such a file learns what to do
// with them. Private to config.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::config {

// For "resources.shm_size" a sentence about it; empty for a key that Determined does not have either.
std::string explain_determined_key(std::string_view path);

}  // namespace dtrain::config
