#include "report/lines.h"

#include <algorithm>
#include <cmath>

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kFewLines = 6;  // can be distinguished

}  // namespace

std::vector<Point> thin(std::vector<Point> points, std::size_t most) {
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  if (points.size() <= most || most == 0) return points;
  const double first = points.front().x;
  const double width = std::max((points.back().x - first) / static_cast<double>(most), 1e-9);
  std::vector<Point> result;
  std::size_t from = 0;
  while (from < points.size()) {
    const double column = std::floor((points[from].x - first) / width);
    Point sum{0, 0, points[from].low, points[from].high};
    std::size_t to = from;
    for (; to < points.size() && std::floor((points[to].x - first) / width) == column; ++to) {
      sum.x += points[to].x;
      sum.y += points[to].y;
      sum.low = std::min(sum.low, points[to].low);
      sum.high = std::max(sum.high, points[to].high);
    }
    const auto count = static_cast<double>(to - from);
    result.push_back({sum.x / count, sum.y / count, sum.low, sum.high});
    from = to;
  }
  return result;
}

Json line_set(const std::string& name, const std::vector<Point>& points, bool band) {
  std::vector<double> x, y, low, high;
  for (const Point& one : points) {
    x.push_back(one.x);
    y.push_back(one.y);
    low.push_back(one.low);
    high.push_back(one.high);
  }
  Json set = {{"name", name}, {"x", rounded(x, 6)}, {"y", rounded(y)}};
  if (band) {
    set["low"] = rounded(low);
    set["high"] = rounded(high);
  }
  return set;
}

Json time_series(const Input& input, const std::string& title, const std::string& unit) {
  return {{"kind", "series"},
          {"group", "time"},
          {"whole", {0, rounded(std::max(input.end_s(), 1e-3), 6)}},
          {"x", {{"title", "time since the start"}, {"unit", "s"}}},
          {"y", {{"title", title}, {"unit", unit}}},
          {"sets", Json::array()}};
}

Json few_lines(Json spec, std::vector<Point> all, const std::string& what) {
  if (spec["sets"].empty()) return nullptr;
  if (spec["sets"].size() <= kFewLines) return spec;
  for (Json& set : spec["sets"]) set["hidden"] = true;
  Json together = line_set("all " + what + ", from least to greatest", thin(std::move(all), kMostColumns), true);
  together["color"] = "compute";
  spec["sets"].insert(spec["sets"].begin(), std::move(together));
  return spec;
}

Histogram::Histogram(double first, double last, std::size_t bins)
    : first_(first), width_(std::max((last - first) / static_cast<double>(bins), 1e-9)), counts_(bins, 0) {}

void Histogram::add(double value, std::int64_t times) {
  const double bin = std::floor((value - first_) / width_);
  counts_[static_cast<std::size_t>(std::clamp(bin, 0.0, static_cast<double>(counts_.size() - 1)))] += times;
}

bool Histogram::empty() const {
  return std::all_of(counts_.begin(), counts_.end(), [](std::int64_t count) { return count == 0; });
}

}  // namespace dtrain::analysis::report
