// What a rule found, in words, for the section that shows what it looked at. Any thread may call.
#pragma once

#include <string>

#include "report/input.h"
#include "report/page.h"

namespace dtrain::analysis::report {

// Null where it was not evaluated.
const RuleResult* find_rule(const Input& input, const std::string& name);
// "stddev 3, n_outliers 10"
std::string pairs_text(const Json& object);
// What it looks for, its parameters, what it counted and how often it was triggered, or why it does not apply; and what
// it advises where it was. Nothing for a rule that was not evaluated.
void write_rule(Page& page, const Input& input, const std::string& name);

}  // namespace dtrain::analysis::report
