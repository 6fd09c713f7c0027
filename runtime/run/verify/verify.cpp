#include "dtrain/run/verify.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/analysis.h"
#include "dtrain/base/units.h"
#include "verify/short_runs.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

using analysis::Prediction;
using analysis::RunProfile;
using analysis::WhatIf;

constexpr double kMs = 1e3;

WhatIf predictions_of(const RunProfile& profile) {
  return analysis::analyze(profile).what_if;
}

const Prediction* find_by_mock(const WhatIf& what_if, const std::string& mock) {
  const auto found = std::find_if(what_if.changes.begin(), what_if.changes.end(),
                                  [&](const Prediction& one) { return one.mock == mock; });
  return found == what_if.changes.end() ? nullptr : &*found;
}

std::optional<double> step_ms(const Prediction* prediction) {
  return prediction ? std::optional(prediction->step_p50_s * kMs) : std::nullopt;
}

struct Plain {
  double step_ms = 0;
  WhatIf what_if;
};

std::vector<std::string> mocks_for(int world_size) {
  if (world_size < 2) return {"loader", "train"};
  return {"loader", "comm", "loader,comm", "train"};
}

// What the run is called on disk: "mock-loader-comm".
std::string name_of(const std::string& mock) {
  std::string name = mock.empty() ? "plain" : "mock-" + mock;
  std::replace(name.begin(), name.end(), ',', '-');
  return name;
}

class Verifier {
 public:
  Verifier(const VerifyRequest& request, const std::function<void(const std::string&)>& progress)
      : profile_(analysis::load_run(request.run.path)),
        launch_(short_launch(request.run, profile_, request.steps, request.cluster)),
        mocks_(mocks_for(profile_.world_size)),
        progress_(progress) {
    result_.run = request.run;
    result_.steps = request.steps;
  }

  std::optional<Verification> verify() {
    const WhatIf of_run = predictions_of(profile_);
    result_.run_ms = analysis::slowest_rank_step_s(profile_) * kMs;
    result_.notes = of_run.notes;
    result_.folder = make_what_if_folder(result_.run);
    progress_(
        fmt::format("{} runs of {} steps each, in {}", 2 * mocks_.size() + 1, result_.steps, result_.folder.string()));
    ShortRuns runs(launch_, result_.folder);
    auto before = plain(runs);
    if (!before) return std::nullopt;
    for (const std::string& mock : mocks_) {
      const auto measured = launch(runs, mock);
      auto after = measured ? plain(runs) : std::nullopt;
      if (!after) return std::nullopt;
      result_.predictions.push_back(compare(mock, *before, *after, of_run, *measured));
      before = std::move(after);
    }
    return std::move(result_);
  }

 private:
  std::optional<RunProfile> launch(ShortRuns& runs, const std::string& mock) {
    ++number_;
    const std::string name = fmt::format("{}-{}", number_, name_of(mock));
    progress_(fmt::format("{} of {}: {}", number_, 2 * mocks_.size() + 1, mock.empty() ? "plain" : "--mock " + mock));
    if (!runs.run(name, parse_mock(mock.empty() ? std::vector<std::string>{} : std::vector{mock}))) return std::nullopt;
    return analysis::load_run(result_.folder / name);
  }

  std::optional<Plain> plain(ShortRuns& runs) {
    const auto profile = launch(runs, "");
    if (!profile) return std::nullopt;
    return Plain{analysis::slowest_rank_step_s(*profile) * kMs, predictions_of(*profile)};
  }

  static VerifiedPrediction compare(const std::string& mock, const Plain& before, const Plain& after,
                                    const WhatIf& of_run, const RunProfile& measured) {
    VerifiedPrediction result;
    result.mock = mock;
    result.plain_ms = (before.step_ms + after.step_ms) / 2;
    result.measured_ms = analysis::slowest_rank_step_s(measured) * kMs;
    result.predicted_from_run_ms = step_ms(find_by_mock(of_run, mock));
    const Prediction* first = find_by_mock(before.what_if, mock);
    const Prediction* second = find_by_mock(after.what_if, mock);
    if (first && second) {
      result.name = first->name;
      result.title = first->title;
      result.predicted_ms = (*step_ms(first) + *step_ms(second)) / 2;
    }
    return result;
  }

  const RunProfile profile_;
  const std::vector<std::string> launch_;
  const std::vector<std::string> mocks_;
  const std::function<void(const std::string&)>& progress_;
  Verification result_;
  int number_ = 0;
};

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string ms_text(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.3f}", *ms) : "-";
}

}  // namespace

std::optional<double> VerifiedPrediction::ratio() const {
  if (!predicted_ms || measured_ms <= 0) return std::nullopt;
  return *predicted_ms / measured_ms;
}

std::optional<Verification> verify(const VerifyRequest& request,
                                   const std::function<void(const std::string&)>& progress) {
  return Verifier(request, progress).verify();
}

Json to_json(const Verification& verification) {
  Json json = {{"run", verification.run.path.string()}, {"folder", verification.folder.string()},
               {"steps", verification.steps},           {"run_ms", verification.run_ms},
               {"predictions", Json::array()},          {"notes", verification.notes}};
  for (const VerifiedPrediction& one : verification.predictions) {
    json["predictions"].push_back({{"name", one.name},
                                   {"title", one.title},
                                   {"mock", one.mock},
                                   {"plain_ms", one.plain_ms},
                                   {"predicted_ms", or_null(one.predicted_ms)},
                                   {"predicted_from_run_ms", or_null(one.predicted_from_run_ms)},
                                   {"measured_ms", one.measured_ms},
                                   {"ratio", or_null(one.ratio())}});
  }
  return json;
}

std::string verification_text(const Verification& verification) {
  std::string text =
      fmt::format("{}: predicted and measured, milliseconds a step (median of {} steps; {:.3f} in the run)\n\n",
                  verification.run.path.filename().string(), verification.steps, verification.run_ms);
  text += fmt::format("  {:<14}{:>11}{:>12}{:>11}{:>9}{:>16}  {}\n", "--mock", "plain", "predicted", "measured",
                      "ratio", "from the run", "");
  for (const VerifiedPrediction& one : verification.predictions) {
    const auto ratio = one.ratio();
    text += fmt::format("  {:<14}{:>11.3f}{:>12}{:>11.3f}{:>9}{:>16}  {}\n", one.mock, one.plain_ms,
                        ms_text(one.predicted_ms), one.measured_ms, ratio ? fmt::format("{:.3f}", *ratio) : "-",
                        ms_text(one.predicted_from_run_ms), one.title);
  }
  for (const std::string& note : verification.notes) text += "\nnot predicted: " + note + "\n";
  return text + "\nkept in " + verification.folder.string() + "\n";
}

}  // namespace dtrain::run
