// The key `metrics` of a `model:` experiment. Private to config.
#pragma once

#include <string>
#include <vector>

#include "document/section.h"
#include "dtrain/base/json.h"
#include "dtrain/config/metrics.h"

namespace dtrain::config {

// Reads the key; a metric that does not fit the loss is reported, too.
std::vector<Metric> read_metrics(Section& root, const Loss& loss);
Json metrics_schema();
// "a list of `accuracy`, ..."
std::string metric_values();
// Returns the losses that metrics need, as conditions of a JSON Schema.
std::vector<Json> what_metrics_need();

}  // namespace dtrain::config
