// Keys of Determined's experiment files that have no meaning here, with the reason and what to do instead. Private to
// config.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::config {

// For "resources.shm_size" a sentence about it; empty for a key that Determined does not have either.
std::string explain_determined_key(std::string_view path);

}  // namespace dtrain::config
