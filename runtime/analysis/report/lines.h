// Values over time, and distributions, in as few numbers as a chart can show. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "report/input.h"

namespace dtrain::analysis::report {

struct Point {
  double x = 0, y = 0;
  double low = 0, high = 0;  // of what the point stands for
};
inline Point point(double x, double y) {
  return {x, y, y, y};
}

// At most `most` points: neighbours in time become one with their mean, their least and their greatest value.
std::vector<Point> thin(std::vector<Point> points, std::size_t most);

// A set of a chart of kind "series" (assets/40-charts.js). `band`: with the least and greatest values.
Json line_set(const std::string& name, const std::vector<Point>& points, bool band);

// The spec of a chart over time, as yet without lines: all such charts have one time axis, and zoom together.
Json time_series(const Input& input, const std::string& title, const std::string& unit);
// Where there are many lines, one with a band stands for all of them, and each is seen when its rank is chosen. `all`
// is their points, `what` they are of. Null without lines.
Json few_lines(Json spec, std::vector<Point> all, const std::string& what);

// Counts in bins of equal width over [first, last); what lies outside is in the first and in the last bin.
class Histogram {
 public:
  Histogram(double first, double last, std::size_t bins);
  void add(double value, std::int64_t times = 1);
  bool empty() const;
  double first() const { return first_; }
  double width() const { return width_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  double first_, width_;
  std::vector<std::int64_t> counts_;
};

}  // namespace dtrain::analysis::report
