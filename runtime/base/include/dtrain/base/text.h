// Texts: words and numbers in them, numbers with units for people, quoting and escaping.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain {

// Returns the candidate nearest to `word` by edit distance. Empty: none is so near that `word` is probably a
// misspelling of it (a distance of at most a third of the longer length, or of 1).
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

std::string join(std::span<const std::string> parts, std::string_view separator);
// Returns "a", "a and b" or "a, b and c".
std::string join_with_and(std::span<const std::string> parts);
std::vector<std::string> split(std::string_view text, char separator);
// Removes white space, or these letters, at both ends.
std::string_view trimmed(std::string_view text, std::string_view space = " \t\r\n\v\f");
// Returns the first line that is not just white space, without white space around it; empty: there is none.
std::string first_line(std::string_view text);
// "rank" -> "ranks", "batch" -> "batches", "epoch" -> "epochs"
std::string plural(std::string_view word);
// Returns "1 rank" or "2 ranks".
template <std::integral Count>
std::string count_of(Count count, std::string_view word) {
  return std::to_string(count) + " " + (count == 1 ? std::string(word) : plural(word));
}
// Writes ascending numbers as ranges: "0-15,64-79", "0,1,4". Fewer neighbours than `shortest` are listed.
std::string ranges_text(std::span<const int> numbers, std::string_view separator = ",", std::size_t shortest = 3);
// Removes such ranges from the beginning of the text and returns their numbers. Empty: there are none, or a number is
// not from 0 to 2^20 - 1.
std::vector<int> take_ranges(std::string_view& text, char separator = ',');
// Removes a number from the beginning of the text and returns it. Empty: there is none, or it does not fit. White space
// and a plus sign are no part of a number.
template <typename Number, typename... Base>
std::optional<Number> take_number(std::string_view& text, Base... base) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base...);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}
// Converts the whole text to a number. Empty: it is no number, or does not fit.
template <typename Number, typename... Base>
std::optional<Number> to_number(std::string_view text, Base... base) {
  const auto number = take_number<Number>(text, base...);
  return text.empty() ? number : std::nullopt;
}

// The character at the beginning of a text that is not empty. A `length` of 0: the bytes there are no UTF-8 (overlong
// forms, surrogates and values beyond Unicode are none), or the text ends within the character.
struct Utf8Character {
  std::size_t length = 0;
  std::uint32_t point = 0;
  bool is_cut_off = false;
};
Utf8Character first_character(std::string_view text);
bool is_valid_utf8(std::string_view text);
// Writes each byte as two digits (0-9, a-f).
std::string to_hex(std::string_view bytes);

// Quotes the text as one word of a POSIX shell, in single quotes.
std::string shell_quoted(std::string_view text);

// Escapes the text for an HTML page or an attribute in it.
std::string html_escaped(std::string_view text);

// Numbers with units, for people.
std::string format_bytes(double bytes);          // "25.0 MiB"
std::string format_duration(Nanoseconds value);  // "812 us", "12.3 ms", "4.56 s", "2 min 05 s"
std::string format_rate(double per_second);      // "12,345"
std::string format_percent(double share);        // share 0.1234 -> "12.3%"

}  // namespace dtrain
