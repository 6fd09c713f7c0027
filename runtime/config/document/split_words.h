// A command line as one string, cut into words as a shell does it: quotes and backslashes, no expansion. Private to
// config.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::config {

// Splits the text into words. Empty: a quote is not closed.
std::optional<std::vector<std::string>> split_words(std::string_view text);

}  // namespace dtrain::config
