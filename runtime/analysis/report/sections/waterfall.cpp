// The section from the throughput of computing alone to the measured throughput, and on the ranks that cost most of it.
#include <spdlog/fmt/fmt.h>
#include <algorithm>

#include "report/sections.h"
#include "summary/summary_words.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

// Returns a colour of the palette, by the resource that takes the time.
std::string part_color(const std::string& part) {
  const auto any = [&](std::initializer_list<const char*> words) {
    for (const char* word : words) {
      if (part.find(word) != std::string::npos) return true;
    }
    return false;
  };
  if (part == "hardware") return "ideal";
  if (part == "compute" || part == "slower_kernels") return "compute";
  if (any({"load", "host_to_device", "to_device"})) return "data";
  if (any({"wait", "slower", "balance", "skew"})) return "skew";
  if (any({"communication", "exchange", "allreduce"})) return "wait";
  if (any({"optimizer"})) return "optimizer";
  if (any({"validation"})) return "validation";
  if (any({"checkpoint"})) return "checkpoint";
  return "other";
}

std::string hardware_text(const Waterfall& waterfall) {
  if (!waterfall.hardware_samples_per_s) return {};
  return fmt::format("If every operator ran as fast as the hardware allows, the run would do {} samples/s. ",
                     format_rate(*waterfall.hardware_samples_per_s));
}

}  // namespace

void write_waterfall(Page& page, const Input& input) {
  page.begin_section("waterfall", "From ideal to measured");
  const Waterfall& waterfall = input.analysis.waterfall;
  if (waterfall.parts.empty() || waterfall.wall_s <= 0) {
    page.absent("No waterfall.", "No batch was recorded, so there is nothing to divide up.", "");
    return;
  }
  const std::string attempt = attempt_name(input.analysis.summary);
  page.paragraph(fmt::format(
      "Where the {} of the training loop{} went (mean of all ranks). {}If computing at the pace of the fastest rank "
      "were all, the run would do {} samples/s; it did {}. The parts add up to all of the time.",
      seconds_text(waterfall.wall_s), attempt.empty() ? "" : " of " + attempt, hardware_text(waterfall),
      format_rate(waterfall.ideal_samples_per_s), format_rate(waterfall.samples_per_s)));
  Json labels = Json::array(), low = Json::array(), high = Json::array(), colors = Json::array(), notes = Json::array();
  Table table("Parts of the wall time", {{"part"}, {"seconds", true}, {"share", true}, {"what it is"}});
  double at = 0, sum_s = 0, share = 0;
  for (const WaterfallPart& part : waterfall.parts) {
    labels.push_back(part.name);
    low.push_back(rounded(at, 6));
    at += part.seconds;
    high.push_back(rounded(at, 6));
    colors.push_back(part_color(part.name));
    notes.push_back("(" + format_percent(part.share) + ")");
    sum_s += part.seconds;
    share += part.share;
    table.row({Cell(part.name).colored(part_color(part.name)), Cell(seconds_text(part.seconds), part.seconds),
               Cell(format_percent(part.share), part.share, part.share), part.description});
  }
  table.row({"all", Cell(seconds_text(sum_s), sum_s), Cell(format_percent(share), share), "the wall time of the loop"});
  if (waterfall.no_core_s) {
    const double part = *waterfall.no_core_s / waterfall.wall_s;
    table.row({"of that no core", Cell(seconds_text(*waterfall.no_core_s), *waterfall.no_core_s),
               Cell(format_percent(part), part),
               "a training thread could have run and had no core: across the parts above, mean of the ranks"});
  }
  const Json values = {{"name", "seconds"}, {"low", low}, {"y", high}, {"colors", colors}, {"notes", notes}};
  page.chart({.id = "waterfall-chart",
              .title = "What was added to the ideal",
              .text = fmt::format("Bars from left to right, each beginning where the one above ends: {} of the time is "
                                  "computing. The table below has the same numbers.",
                                  format_percent(waterfall.part_s("compute") / waterfall.wall_s)),
              .spec = {{"kind", "bars"},
                       {"horizontal", true},
                       {"labels", labels},
                       {"y", {{"unit", "s"}, {"title", "time in the loop"}}},
                       {"sets", {values}}},
              .height = 60 + 26 * static_cast<int>(waterfall.parts.size())});
  page.table(table);
}

// The section on the ranks for which the others waited, and why.

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
