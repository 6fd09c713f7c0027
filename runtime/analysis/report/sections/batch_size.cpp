// Whether the batch is large enough to keep what computes busy.
#include <functional>
#include <map>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "report/rule_text.h"
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

// "4 x 32, 1 x 31"
std::string split_text(const Json& plan) {
  const auto split = plan.find("batch_per_rank");
  if (split == plan.end() || !split->is_array()) return {};
  std::map<std::int64_t, int, std::greater<>> ranks;
  for (const Json& batch : *split) {
    if (batch.is_number_integer()) ++ranks[batch.get<std::int64_t>()];
  }
  std::vector<std::string> parts;
  for (const auto& [batch, count] : ranks) parts.push_back(fmt::format("{} x {}", count, batch));
  return join(parts, ", ");
}

}  // namespace

void write_batch_size(Page& page, const Input& input) {
  page.begin_section("batch-size", "Batch size");
  write_rule(page, input, "BatchSize");
  const RunSummary& s = input.analysis.summary;
  if (!s.global_batch_size && s.steps == 0) {
    page.absent("Nothing about the batch size.", "No batch was recorded, and plan.json has no batch size.", "");
    return;
  }
  std::vector<std::pair<std::string, std::string>> facts;
  if (s.global_batch_size) facts.emplace_back("global batch", count_text(*s.global_batch_size));
  if (const std::string split = split_text(input.run.plan); !split.empty()) facts.emplace_back("of the ranks", split);
  if (const std::int64_t effective = integer(input.run.plan, "effective_batch_size"); effective > 0) {
    facts.emplace_back("effective batch, with aggregation", count_text(effective));
  }
  if (s.world_size > 1) {
    facts.emplace_back("exposed communication",
                       format_percent(s.exposed_share) + " of the loop" +
                           (s.graphs_s > 0 ? ", without CUDA graphs, where it is not known" : ""));
  }
  page.facts(facts);
}

}  // namespace dtrain::analysis::report
