// Small text helpers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain {

// The candidate nearest to `word` by edit distance. Empty: none is so near that `word` is probably a misspelling of it
// (a distance of at most a third of the longer length, or of 1).
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

std::string join(std::span<const std::string> parts, std::string_view separator);
// "a", "a and b", "a, b and c"
std::string join_with_and(std::span<const std::string> parts);
std::vector<std::string> split(std::string_view text, char separator);
// The first line that is not just white space, without white space around it; empty: there is none.
std::string first_line(std::string_view text);
// Ascending numbers as ranges: "0-15,64-79", "0,1,4".
std::string ranges_text(std::span<const int> numbers);
bool is_valid_utf8(std::string_view text);
// Two digits (0-9, a-f) for each byte.
std::string to_hex(std::string_view bytes);

// The text as one word of a POSIX shell, in single quotes.
std::string shell_quoted(std::string_view text);

}  // namespace dtrain
