// Numbers for people, and lines of text for a terminal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/summary.h"
#include "dtrain/base/text.h"

namespace dtrain::analysis {

inline std::string seconds_text(double seconds) {
  constexpr double kMost = 9e9;  // seconds, 285 years; nanoseconds beyond do not fit
  if (std::isnan(seconds)) return "-";
  return format_duration(Nanoseconds(std::llround(std::clamp(seconds, -kMost, kMost) * 1e9)));
}

// Converts an estimated count.
inline std::int64_t to_count(double value) {
  constexpr double kMost = 9e15;  // whole numbers up to here are exact
  return std::isnan(value) ? 0 : std::llround(std::clamp(value, -kMost, kMost));
}

// "1,234,567"
inline std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

// "1 rank", "1,234 ranks"
inline std::string count_text(std::int64_t count, std::string_view word) {
  return count_text(count) + " " + (count == 1 ? std::string(word) : plural(word));
}

// Returns the value with three digits and a decimal prefix: "82.1 GFLOP/s" of 8.21e10 and "FLOP/s".
inline std::string amount_text(double value, const std::string& unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; value >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  return fmt::format("{:.{}f} {}{}", value,
                     value >= 99.95 || prefix == 0 ? 0
                     : value >= 9.995              ? 1
                                                   : 2,
                     kPrefixes[prefix], unit);
}

// Lines of text for a terminal: width, colours, bars.
class TextWriter {
 public:
  explicit TextWriter(const TextOptions& options) : width_(std::max(options.width, kMinWidth)), color_(options.color) {}

  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    std::string text = fmt::format(format, std::forward<Args>(args)...);
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out_ += text + "\n";
  }
  // Adds indented text in as many lines as it needs; `first` precedes it, within the indentation.
  void paragraph(const std::string& text, std::size_t indent = 2, const std::string& first = {}) {
    const std::size_t room = static_cast<std::size_t>(width_) - indent;
    std::string margin = first + std::string(indent - std::min(indent, first.size()), ' ');
    std::size_t begin = 0;
    while (text.size() - begin > room) {
      const std::size_t space = text.rfind(' ', begin + room);
      if (space == std::string::npos || space <= begin) break;
      line("{}{}", margin, text.substr(begin, space - begin));
      margin.assign(indent, ' ');
      begin = space + 1;
    }
    line("{}{}", margin, text.substr(begin));
  }
  void heading(const std::string& text) { out_ += "\n" + styled("1", text) + "\n"; }
  std::string styled(const char* code, const std::string& text) const {
    return color_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  }
  // Returns a bar that fills the part `share` of the line after `used` columns.
  std::string bar(double share, int used) const {
    const int room = std::clamp(width_ - used, 0, 40);
    const auto cells = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * room));
    return styled("36", std::string(static_cast<std::size_t>(cells), '#'));
  }
  std::string take() { return std::move(out_); }

 private:
  static constexpr int kMinWidth = 60;
  int width_;
  bool color_;
  std::string out_;
};

// Returns the warning to print before the numbers of a run that lacks dumps; empty: it has them all.
inline std::string missing_ranks_text(const RunSummary& summary) {
  const auto found = static_cast<std::int64_t>(summary.ranks.size());
  if (summary.ranks.empty() || found >= summary.world_size) return {};
  return fmt::format("{} of {} have no dump here: throughput and shares are of the others alone",
                     summary.world_size - found, count_text(summary.world_size, "rank"));
}

}  // namespace dtrain::analysis
