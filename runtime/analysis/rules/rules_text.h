// The rules' results as people read them on a terminal. Private to analysis.
#pragma once

#include <vector>

#include "dtrain/analysis/rules.h"
#include "text_writer.h"

namespace dtrain::analysis::rules {

// What triggered, with what to do; then what did not, and what does not apply and why.
void write_rules(TextWriter& out, const std::vector<RuleResult>& results);

}  // namespace dtrain::analysis::rules
