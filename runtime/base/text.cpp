#include "dtrain/base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>

namespace dtrain {
namespace {

// Counts the edits between two words; two swapped neighbours are one edit, because they are one typing error.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string format_fixed(double value, int decimals, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f%s", decimals, value, unit);
  return text;
}

// Writes three significant digits: "4.56", "45.6", "456".
std::string three_digits(double value, const char* unit) {
  return format_fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kLongestWord = 200;  // the work grows with the product of the lengths
  if (word.size() > kLongestWord) return std::nullopt;
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestWord) continue;
    const std::size_t distance = edit_distance(word, candidate);
    const std::size_t allowed = std::max<std::size_t>(1, std::max(word.size(), candidate.size()) / 3);
    if (distance <= allowed && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != parts.data()) text += separator;
    text += part;
  }
  return text;
}

std::string join_with_and(std::span<const std::string> parts) {
  if (parts.size() < 2) return join(parts, "");
  return join(parts.first(parts.size() - 1), ", ") + " and " + parts.back();
}

std::string plural(std::string_view word) {
  return std::string(word) + (word.ends_with("tch") || word.ends_with("ss") ? "es" : "s");
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string_view trimmed(std::string_view text, std::string_view space) {
  text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
  return text.substr(0, text.find_last_not_of(space) + 1);
}

std::string first_line(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  text = trimmed(text, kSpace);
  return std::string(trimmed(text.substr(0, text.find('\n')), kSpace));
}

std::string ranges_text(std::span<const int> numbers, std::string_view separator, std::size_t shortest) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    if (end - begin < shortest) end = begin + 1;
    parts.push_back(std::to_string(numbers[begin]));
    if (end - begin > 1) parts.back() += "-" + std::to_string(numbers[end - 1]);
  }
  return join(parts, separator);
}

std::vector<int> take_ranges(std::string_view& text, char separator) {
  constexpr int kMost = 1 << 20;
  std::vector<int> numbers;
  for (;;) {
    const auto first = take_number<int>(text);
    auto last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number<int>(text);
    }
    if (!first || !last || *first < 0 || *first >= kMost || *last < 0 || *last >= kMost) return {};
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
    if (!text.starts_with(separator)) return numbers;
    text.remove_prefix(1);
  }
}

Utf8Character first_character(std::string_view text) {
  const auto lead = static_cast<std::uint8_t>(text[0]);
  const std::size_t length = lead < 0x80                    ? 1
                             : lead >= 0xC2 && lead <= 0xDF ? 2
                             : lead >> 4 == 0xE             ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  std::uint32_t point = length <= 1 ? lead : lead & (0xFFu >> (length + 1));
  std::size_t have = 1;
  for (; have < std::min(length, text.size()) && (static_cast<std::uint8_t>(text[have]) & 0xC0) == 0x80; ++have) {
    point = point << 6 | (static_cast<std::uint8_t>(text[have]) & 0x3F);
  }
  if (have < length) return {.is_cut_off = have == text.size()};
  const bool is_wrong =
      (length == 3 && (point < 0x800 || point >> 11 == 0x1B)) || (length == 4 && (point < 0x10000 || point > 0x10FFFF));
  return is_wrong ? Utf8Character{} : Utf8Character{length, point};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = first_character(text).length;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char letter : text) result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return result + "'";
}

std::string html_escaped(std::string_view text) {
  constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string result;
  result.reserve(text.size());
  for (const char& letter : text) {
    const auto* const escape = std::ranges::find(kEscapes, letter, &std::pair<char, std::string_view>::first);
    result += escape == std::end(kEscapes) ? std::string_view(&letter, 1) : escape->second;
  }
  return result;
}

std::string format_bytes(double bytes) {
  constexpr std::array kUnits{" KiB", " MiB", " GiB", " TiB", " PiB"};
  if (std::abs(bytes) < 1023.5) return format_fixed(bytes, 0, " B");
  double value = bytes / 1024;
  std::size_t unit = 0;
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return format_fixed(value, 1, kUnits[unit]);
}

std::string format_duration(Nanoseconds value) {
  if (value.count() < 0) return "-" + format_duration(-std::max(value, -Nanoseconds::max()));  // min() has no opposite
  const auto count = static_cast<double>(value.count());
  if (value.count() == 0) return "0 s";
  if (count < 999.5) return format_fixed(count, 0, " ns");
  if (count < 999.5e3) return three_digits(count / 1e3, " us");
  if (count < 999.5e6) return three_digits(count / 1e6, " ms");
  if (count < 59.95e9) return three_digits(count / 1e9, " s");
  const auto seconds = std::llround(count / 1e9);
  char text[64];
  if (seconds < 3600) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", seconds / 60, seconds % 60);
  } else {
    const auto minutes = std::llround(count / 60e9);
    std::snprintf(text, sizeof text, "%lld h %02lld min", minutes / 60, minutes % 60);
  }
  return text;
}

std::string format_rate(double per_second) {
  if (!std::isfinite(per_second)) return "-";
  if (std::abs(per_second) < 99.95) return three_digits(per_second, "");
  std::string digits = format_fixed(per_second, 0, "");
  const int first = digits.front() == '-' ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string format_percent(double share) {
  return format_fixed(share * 100, 1, "%");
}

}  // namespace dtrain
