// A verification as JSON and as text.
#include <spdlog/fmt/fmt.h>

#include "dtrain/run/verify.h"

namespace dtrain::run {
namespace {

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string ms_text(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.3f}", *ms) : "-";
}

}  // namespace

Json to_json(const Verification& verification) {
  Json json = {{"run", verification.run.path.string()}, {"folder", verification.folder.string()},
               {"steps", verification.steps},           {"rounds", verification.rounds},
               {"run_ms", verification.run_ms},         {"foreign_percent", or_null(verification.foreign_percent)},
               {"predictions", Json::array()},          {"notes", verification.notes}};
  for (const VerifiedPrediction& one : verification.predictions) {
    json["predictions"].push_back({{"name", one.name},
                                   {"title", one.title},
                                   {"mock", one.mock.empty() ? Json(nullptr) : Json(one.mock)},
                                   {"set", one.set.empty() ? Json(nullptr) : Json(one.set)},
                                   {"plain_ms", one.plain_ms},
                                   {"predicted_ms", or_null(one.predicted_ms)},
                                   {"predicted_from_run_ms", or_null(one.predicted_from_run_ms)},
                                   {"measured_ms", one.measured_ms},
                                   {"ratio", or_null(one.ratio)},
                                   {"ratios", one.ratios}});
  }
  return json;
}

std::string verification_text(const Verification& verification) {
  std::string text = fmt::format(
      "{}: predicted and measured, milliseconds a step (median of {} steps, {} times; {:.3f} in the run)\n\n",
      verification.run.path.filename().string(), verification.steps, verification.rounds, verification.run_ms);
  text += fmt::format("  {:<14}{:>11}{:>12}{:>11}{:>9}{:>16}\n", "change", "plain", "predicted", "measured", "ratio",
                      "from the run");
  for (const VerifiedPrediction& one : verification.predictions) {
    text += fmt::format("  {:<14}{:>11.3f}{:>12}{:>11.3f}{:>9}{:>16}  {}\n",
                        one.set.empty() ? one.mock : "--set " + one.set, one.plain_ms, ms_text(one.predicted_ms),
                        one.measured_ms, one.ratio ? fmt::format("{:.3f}", *one.ratio) : "-",
                        ms_text(one.predicted_from_run_ms), one.title);
  }
  for (const std::string& note : verification.notes) text += "\nnote: " + note + "\n";
  return text + "\nkept in " + verification.folder.string() + "\n";
}

}  // namespace dtrain::run
