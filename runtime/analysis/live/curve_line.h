// A curve in one line of a terminal. Any thread.
#pragma once

#include <span>
#include <string>

#include "dtrain/analysis/curves.h"

namespace dtrain::analysis {

// `columns` block characters over the batches from the first to the last point, the least value lowest; a column
// between two points goes on with the value before it. "x": the values there are nan or infinite.
std::string draw_curve(std::span<const CurvePoint> points, int columns);

}  // namespace dtrain::analysis
