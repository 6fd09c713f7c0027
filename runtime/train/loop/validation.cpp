#include "loop/validation.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <ATen/ATen.h>

#include "dtrain/base/json_number.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/agreed_error.h"
#include "loop/module_modes.h"
#include "loop/random_seed.h"
#include "precision/autocast.h"
#include "step/startup_checks.h"

namespace dtrain::train {

namespace {

Loader validation_loader(Trial& trial, const run::RankSession& session) {
  seed_draws(session, Draws::kValidation, -1);
  return trial.validation_loader();
}

}  // namespace

Validation::Validation(Trial& trial, TrialContext& context, run::RankSession& session, TrainingStep& step)
    : trial_(trial),
      context_(context),
      session_(session),
      step_(step),
      loader_(validation_loader(trial, session)),
      feed_(context.device()),
      in_flight_(context.device(), session.device_communicator(), session.recorder()),
      metrics_("validation", session.control(), session.communicator()) {
  const std::string& metric = session.experiment().searcher.metric;
  if (!loader_ && !metric.empty() && session.world().rank == 0) {
    session.log()->warn("searcher.metric is '{}', but there is no validation data: it has no effect", metric);
  }
}

std::optional<Validation::Result> Validation::run(std::int64_t batch, std::int64_t epoch) {
  if (!loader_ || last_batch_ == batch) return std::nullopt;
  last_batch_ = batch;
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kValidation);
  torch::nn::Module& model = *context_.wrapped().model;
  broadcast_buffers(model, session_.device_communicator());
  {
    const auto averages = step_.weight_averages();
    const auto averaged = averages.empty() ? nullptr : step_.values_in_model(averages, /*as_computed=*/true);
    const EvaluationMode evaluation(model);
    const at::NoGradGuard no_grad;
    // What the batch before has left of the random stream is not there in a run that goes on from a checkpoint.
    seed_draws(session_, Draws::kValidation, batch);
    loader_->start_epoch(0);
    while (auto part = loader_->next()) {
      feed_.move(*part);
      metrics_.add(evaluate(*part), part->samples);
      in_flight_.end_batch();
    }
    in_flight_.finish_all();
  }
  feed_.let_go();
  const ReducedMetrics reduced = metrics_.reduce();
  const Result result = judge(reduced);
  if (session_.world().rank == 0) report(reduced, result, batch, epoch);
  return result;
}

Validation::Result Validation::judge(const ReducedMetrics& reduced) {
  const auto& searcher = session_.experiment().searcher;
  if (searcher.metric.empty()) return {};
  std::vector<std::string> names;
  for (const auto& [name, mean] : reduced.means) names.push_back(name);
  require_metric(names);
  const double value = reduced.means.at(searcher.metric);
  const bool best = is_better(value, best_, searcher.smaller_is_better);
  if (best) best_ = value;
  return {value, best};
}

bool is_better(double value, const std::optional<double>& best, bool smaller_is_better) {
  if (std::isnan(value)) return false;
  return !best || (smaller_is_better ? value < *best : value > *best);
}

void Validation::require_metric(const std::vector<std::string>& names) const {
  const std::string& metric = session_.experiment().searcher.metric;
  if (std::find(names.begin(), names.end(), metric) != names.end()) return;
  throw run::AgreedError("searcher.metric is '" + metric + "', which evaluate_batch() does not return",
                         "use one of: " + join(names, ", "));
}

Metrics Validation::evaluate(const Batch& batch) {
  const Autocast autocast(autocast_type(session_.experiment().optimizations.mixed_precision), context_.device());
  return trial_.evaluate_batch(batch);
}

void Validation::check_metric() {
  if (!loader_ || session_.experiment().searcher.metric.empty()) return;
  loader_->start_epoch(0);
  auto part = loader_->next();
  if (!part) return;
  const EvaluationMode evaluation(*context_.wrapped().model);
  const at::NoGradGuard no_grad;
  feed_.move(*part);
  std::vector<std::string> names;
  for (const auto& [name, value] : evaluate(*part)) names.push_back(name);
  require_metric(names);
}

void Validation::visit(StateVisitor& visitor) {
  visitor.number("last_batch", last_batch_);
  visitor.real("best", best_);
}

void Validation::report(const ReducedMetrics& reduced, const Result& result, std::int64_t batch, std::int64_t epoch) {
  std::ostringstream text;
  for (const auto& [name, value] : reduced.means) {
    text << "  " << name << " ";
    std::isfinite(value) ? text << value : text << non_finite_text(value);
  }
  Json line = {{"kind", "validation"},
               {"batch", batch},
               {"epoch", epoch},
               {"samples", reduced.samples},
               {"metrics", numbers_or_texts(reduced.means)}};
  const auto& searcher = session_.experiment().searcher;
  if (!searcher.metric.empty()) {
    line["best"] = result.best;
    if (best_) text << (result.best ? "  (best " : "  (best so far ") << searcher.metric << " " << *best_ << ")";
  }
  session_.write_metrics(line);
  session_.log()->info("validation after batch {}:{}  over {} samples", batch, text.str(), reduced.samples);
}

}  // namespace dtrain::train
