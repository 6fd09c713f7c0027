// The rules' results as people read them on a terminal. Private to analysis.
#pragma once

#include <string>
#include <vector>

#include "dtrain/analysis/rules.h"
#include "text/text_writer.h"

namespace dtrain::analysis::rules {

// "3 steps, of 1,200 data points judged"
std::string triggered_text(const RuleResult& result);

// What triggered, with what to do; then what did not, and what does not apply and why.
void write_rules(TextWriter& out, const std::vector<RuleResult>& results);

}  // namespace dtrain::analysis::rules
