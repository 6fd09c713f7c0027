#include "plan/division.h"

#include <algorithm>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "dtrain/scheduler/core_groups.h"

namespace dtrain::run {
namespace {

std::string division_text(const std::vector<scheduler::CoreUnit>& units, int slots) {
  std::size_t least = units.size(), most = 0;
  for (const std::vector<int>& group : scheduler::divide_cores_evenly(units, slots)) {
    least = std::min(least, group.size());
    most = std::max(most, group.size());
  }
  return count_of(slots, "rank") + " x " + (least < most ? std::to_string(least) + " to " : "") +
         count_of(most, "core");
}

std::set<int> numbers_of_ranks(int cores, int nodes) {
  std::set<int> numbers{1, nodes, cores};
  for (int number = 2, last = 1; number < cores; ++number) {
    if (cores % number == 0 && number >= 2 * last) numbers.insert(last = number);
  }
  return numbers;
}

}  // namespace

std::vector<DivisionTrial> divisions_to_try(const scheduler::ClusterAgent& agent, std::int64_t global_batch_size,
                                            int most) {
  std::vector<scheduler::CoreUnit> units;
  std::set<int> nodes;
  for (const scheduler::ClusterSlot& core : agent.slots) {
    units.push_back({core.index, core.node, core.package, core.kind});
    nodes.insert(core.node);
  }
  std::vector<DivisionTrial> trials;
  for (const int slots : numbers_of_ranks(static_cast<int>(units.size()), static_cast<int>(nodes.size()))) {
    const bool divides = slots == 1 || (global_batch_size >= slots && global_batch_size % slots == 0);
    if (!divides || (most > 0 && slots > most)) continue;
    trials.push_back({.slots = slots, .text = division_text(units, slots), .failure = {}});
  }
  return trials;
}

const DivisionTrial* fastest_of(const std::vector<DivisionTrial>& trials) {
  const DivisionTrial* fastest = nullptr;
  for (const DivisionTrial& one : trials) {
    if (one.step_ms > 0 && (!fastest || one.step_ms < fastest->step_ms)) fastest = &one;
  }
  return fastest;
}

Json to_json(const Division& division) {
  Json json = {{"slots", division.slots > 0 ? Json(division.slots) : Json()},
               {"why", division.why},
               {"remembered", division.remembered},
               {"trials", Json::array()}};
  for (const DivisionTrial& one : division.trials) {
    json["trials"].push_back({{"slots", one.slots},
                              {"text", one.text},
                              {"step_ms", one.step_ms > 0 ? Json(one.step_ms) : Json()},
                              {"steps", one.steps},
                              {"failure", one.failure.empty() ? Json() : Json(one.failure)}});
  }
  return json;
}

Division division_of(const Json& json) {
  const auto or_zero = [](const Json& value) { return value.is_null() ? 0.0 : value.get<double>(); };
  Division division{.slots = static_cast<int>(or_zero(json.at("slots"))),
                    .why = json.at("why").get<std::string>(),
                    .remembered = json.at("remembered").get<bool>(),
                    .trials = {}};
  for (const Json& one : json.at("trials")) {
    division.trials.push_back({.slots = one.at("slots").get<int>(),
                               .text = one.at("text").get<std::string>(),
                               .step_ms = or_zero(one.at("step_ms")),
                               .steps = one.at("steps").get<std::int64_t>(),
                               .failure = one.at("failure").is_null() ? "" : one.at("failure").get<std::string>()});
  }
  return division;
}

std::string trial_text(const DivisionTrial& trial) {
  if (!trial.failure.empty()) return trial.text + ": left out, its trial failed: " + trial.failure;
  if (trial.step_ms <= 0) return trial.text;
  return fmt::format("{}: {:.3g} ms a batch (median of {})", trial.text, trial.step_ms, trial.steps);
}

std::string render_division(const Division& division) {
  std::string text = "division    ";
  const std::string indent(text.size(), ' ');
  if (division.slots == 0) {
    text +=
        "not known yet: a launch tries the ones below, and remembers the fastest (ranks below: as with the first)\n";
  } else if (division.trials.empty()) {
    text += count_of(division.slots, "rank") + ": " + division.why + "\n";
  } else {
    text += fmt::format("resources.slots_per_trial: auto takes {}, the fastest {}\n", division.slots,
                        division.remembered ? "by the figures of an earlier launch" : "by the figures of this launch");
  }
  for (const DivisionTrial& one : division.trials) text += indent + trial_text(one) + "\n";
  if (division.slots > 0 && !division.trials.empty()) {
    text += fmt::format("{}resources.slots_per_trial: {} fixes it (another division gives other bits)\n", indent,
                        division.slots);
  }
  return text;
}

}  // namespace dtrain::run
