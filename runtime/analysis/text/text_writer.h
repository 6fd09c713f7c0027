// Lines of text for a terminal: width, colours, bars.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/summary_text.h"
#include "text/numbers.h"

namespace dtrain::analysis {

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
