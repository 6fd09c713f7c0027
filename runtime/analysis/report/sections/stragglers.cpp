// Which rank the others waited for, and why.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

std::string clock_text(const std::optional<std::int64_t>& error_ns) {
  if (!error_ns)
    return "The clocks of the hosts were not compared; waiting is counted within each rank, so it holds all the same.";
  if (*error_ns == 0) return "All ranks share one clock.";
  return fmt::format("Times of different hosts are comparable to within {}.",
                     seconds_text(static_cast<double>(*error_ns) / 1e9));
}

Json bars(const Stragglers& stragglers, std::size_t most) {
  Json labels = Json::array(), waited = Json::array(), cost = Json::array();
  for (std::size_t i = 0; i < std::min(most, stragglers.ranks.size()); ++i) {
    const Straggler& one = stragglers.ranks[i];
    labels.push_back("rank " + std::to_string(one.rank));
    waited.push_back(rounded(one.waited_s));
    cost.push_back(rounded(one.cost_s));
  }
  return {{"kind", "bars"},
          {"labels", labels},
          {"y", {{"title", "time"}, {"unit", "s"}}},
          {"sets",
           {{{"name", "the others waited for it"}, {"color", "skew"}, {"y", waited}},
            {{"name", "beyond waiting for an ordinary rank"}, {"color", "wait"}, {"y", cost}}}}};
}

}  // namespace

void write_stragglers(Page& page, const Input& input) {
  page.begin_section("stragglers", "Who waits for whom");
  const Stragglers& stragglers = input.analysis.stragglers;
  if (input.run.ranks.size() < 2 || stragglers.ranks.empty() || stragglers.compared_steps == 0) {
    page.absent("No comparison of ranks.",
                input.run.ranks.size() < 2 ? "The dump of only one rank is there: it waits for no other."
                                           : "There was no exchange that all ranks recorded.",
                "Train on two slots or more (resources.slots_per_trial).");
    return;
  }
  const Straggler& first = stragglers.ranks.front();
  page.paragraph(fmt::format("In {} compared exchanges ranks waited {} each (mean) for the last one to arrive. {}",
                             count_text(stragglers.compared_steps), seconds_text(stragglers.waiting_s),
                             clock_text(stragglers.clock_error_ns)));
  page.chart({.id = "straggler-chart",
              .title = "What the others waited for each rank",
              .text = fmt::format("Most for rank {}: {}, of which {} beyond what they wait for an ordinary rank.",
                                  first.rank, seconds_text(first.waited_s), seconds_text(first.cost_s)),
              .spec = bars(stragglers, kMostRanks),
              .height = 220});
  Table table("Ranks by what the others waited for them",
              {{"rank"},
               {"host"},
               {"came last to", true, "of the compared exchanges"},
               {"others waited", true, "each of them on average"},
               {"beyond ordinary", true, "more than they wait for the median rank; what its finding begins with"},
               {"cause"},
               {"evidence"}});
  for (const Straggler& one : stragglers.ranks) {
    const double share = static_cast<double>(one.steps) / static_cast<double>(stragglers.compared_steps);
    table.row({Cell("rank " + std::to_string(one.rank), one.rank), one.host,
               Cell(fmt::format("{} ({})", count_text(one.steps), format_percent(share)),
                    static_cast<double>(one.steps), share)
                   .colored("skew"),
               Cell(seconds_text(one.waited_s), one.waited_s), Cell(seconds_text(one.cost_s), one.cost_s), one.cause,
               one.evidence},
              one.rank);
  }
  page.table(table);
}

}  // namespace dtrain::analysis::report
