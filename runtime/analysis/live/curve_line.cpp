#include "live/curve_line.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace dtrain::analysis {
namespace {

constexpr std::array kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// The points whose last batch is in each column.
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
