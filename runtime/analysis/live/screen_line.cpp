#include "live/live_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/text.h"

namespace dtrain::analysis {
namespace {

bool goes_on(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// Returns the number of bytes of the character that begins at `at`.
std::size_t length_of(std::string_view text, std::size_t at) {
  std::size_t end = at + 1;
  while (end < text.size() && goes_on(text[end])) ++end;
  return end - at;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first < 0x20 || first == 0x7f) return true;
  return first == 0xc2 && character.size() == 2 && static_cast<unsigned char>(character[1]) < 0xa0;  // U+0080 to U+009F
}

std::string_view cut(std::string_view text, int columns) {
  std::size_t end = 0;
  for (int i = 0; i < columns && end < text.size(); ++i) end += length_of(text, end);
  return text.substr(0, end);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, length_of(text, at));
    result += !is_valid_utf8(character) || is_control(character) ? "?" : character;
    at += character.size();
  }
  return result;
}

int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char byte) { return !goes_on(byte); }));
}

ScreenLine& ScreenLine::add(std::string_view text, const char* style) {
  const std::string shown = printable(text);
  const std::string_view fits = cut(shown, room_);
  room_ -= columns_of(fits);
  if (!color_ || style == nullptr || fits.empty()) {
    text_ += fits;
    return *this;
  }
  text_ += "\x1b[";
  text_ += style;
  text_ += "m";
  text_ += fits;
  text_ += "\x1b[0m";
  return *this;
}

ScreenLine& ScreenLine::left(std::string_view text, int columns, const char* style) {
  const std::string shown(cut(printable(text), columns));
  add(shown, style);
  return add(std::string(static_cast<std::size_t>(columns - columns_of(shown)), ' '));
}

ScreenLine& ScreenLine::right(std::string_view text, int columns, const char* style) {
  const std::string shown(cut(printable(text), columns));
  add(std::string(static_cast<std::size_t>(columns - columns_of(shown)), ' '));
  return add(shown, style);
}

std::string ScreenLine::take() {
  while (!text_.empty() && text_.back() == ' ') text_.pop_back();
  return std::move(text_);
}

namespace {

constexpr std::array kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// Returns the points by the column of their last batch.
std::vector<std::optional<CurvePoint>> columns_of_points(std::span<const CurvePoint> points, int columns) {
  std::vector<std::optional<CurvePoint>> result(static_cast<std::size_t>(columns));
  const std::int64_t first = points.front().batch;
  const double width = static_cast<double>(points.back().batch - first) / columns;
  for (const CurvePoint& point : points) {
    const double column = width > 0 ? static_cast<double>(point.batch - first) / width : 0;
    auto& at = result[std::min(result.size() - 1, static_cast<std::size_t>(column))];
    at = at ? together(std::array{*at, point}) : point;
  }
  return result;
}

}  // namespace

std::string draw_curve(std::span<const CurvePoint> points, int columns) {
  if (points.empty() || columns <= 0) return {};
  const auto drawn = columns_of_points(points, columns);
  std::optional<double> low, high;
  for (const auto& point : drawn) {
    if (!point || point->finite == 0) continue;
    low = std::min(low.value_or(point->mean), point->mean);
    high = std::max(high.value_or(point->mean), point->mean);
  }
  std::string text, last = " ";
  for (const auto& point : drawn) {
    if (point && point->finite == 0) {
      last = "x";
    } else if (point) {
      const double share = *high > *low ? (point->mean - *low) / (*high - *low) : 0.5;
      last = kBlocks[std::min(kBlocks.size() - 1, static_cast<std::size_t>(share * kBlocks.size()))];
    }
    text += last;
  }
  return text;
}

}  // namespace dtrain::analysis
