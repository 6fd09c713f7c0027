// Charts of learning: each metric of a run, or of several runs, over batches or time. Any thread may call.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/curves.h"
#include "report/page.h"

namespace dtrain::analysis::report {

struct NamedCurves {
  std::string name;  // of the run
  const RunCurves* curves;
};

// The switches of all curves of the page: batches or time, and smoothing.
void write_curve_controls(Page& page);

// A chart for each metric and rate. Of one run, training and validation of a metric are in one chart, and restarts are
// marked; of several runs each line is a run. `first_metric` (searcher.metric) is drawn after the loss. Returns how
// many charts did not fit.
std::size_t write_curve_charts(Page& page, const std::vector<NamedCurves>& runs, const std::string& first_metric);

// "nan or infinite 3 times, first in batch 120"; empty: all its values are finite.
std::string non_finite_note(const Curve& curve);

// A metric's value with as many digits as matter.
std::string value_text(double value);
// "0.412 (batch 9,380)"
Cell value_cell(const std::optional<CurveValue>& value);

}  // namespace dtrain::analysis::report
