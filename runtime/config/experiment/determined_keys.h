// Keys of Determined's experiment files that have no meaning here, with the reason and what to do instead. Private to
// config.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::config {

// Returns a sentence about a key, such as "resources.shm_size"; empty: Determined does not have the key either.
std::string explain_determined_key(std::string_view path);

}  // namespace dtrain::config
