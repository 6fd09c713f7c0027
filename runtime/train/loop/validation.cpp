#include "loop/validation.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <ATen/ATen.h>

#include "dtrain/base/json.h"
#include "dtrain/base/pulse.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "loop/logical_batches.h"
#include "loop/prediction_file.h"
#include "loop/random_seed.h"
#include "model/precision.h"
#include "model/tensor_memory.h"
#include "step/checks.h"

namespace dtrain::train {
namespace {

// Returns the ranks' rows in rank order, on the CPU; undefined if no rank has any. `mine`: undefined for none. Error if
// rows differ in type or shape; `what` has rows in its message. `key`: another one in each call. Collective.
at::Tensor gather_rows(rank::RankSession& session, const std::string& what, const std::string& key, at::Tensor mine) {
  const at::NoGradGuard no_grad;
  Json form = {{"rows", 0}};
  if (mine.defined()) {
    mine = mine.to(at::kCPU).contiguous();
    form = {{"rows", mine.size(0)},
            {"type", static_cast<int>(mine.scalar_type())},
            {"text",
             std::string(c10::toString(mine.scalar_type())) + " of shape " + Json(mine.sizes().slice(1).vec()).dump()},
            {"shape", mine.sizes().slice(1).vec()}};
  }
  const std::vector<std::string> texts = session.control().gather(key, form.dump());
  std::vector<std::int64_t> counts;
  Json first;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json of_rank = Json::parse(texts[rank]);
    counts.push_back(of_rank["rows"].get<std::int64_t>());
    if (!of_rank.contains("type")) continue;
    if (first.is_null()) first = of_rank;
    if (of_rank["text"] == first["text"]) continue;
    throw Error(what + " has rows of " + of_rank["text"].get<std::string>() + " on rank " + std::to_string(rank) +
                    ", and of " + first["text"].get<std::string>() + " on a rank before it",
                "give it rows of one form on all ranks");
  }
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  if (first.is_null() || most == 0) return {};
  std::vector<std::int64_t> shape = first["shape"].get<std::vector<std::int64_t>>();
  shape.insert(shape.begin(), most);
  const at::Tensor padded =
      at::zeros(shape, at::TensorOptions().dtype(static_cast<at::ScalarType>(first["type"].get<int>())));
  if (mine.defined()) padded.narrow(0, 0, mine.size(0)).copy_(mine);
  shape.insert(shape.begin(), static_cast<std::int64_t>(counts.size()));
  const at::Tensor all = at::empty(shape, padded.options());
  session.communicator().all_gather(padded.data_ptr(), all.data_ptr(), padded.nbytes(), comm::DataType::kUint8).wait();
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(all[static_cast<std::int64_t>(rank)].narrow(0, 0, counts[rank]));
  }
  return at::cat(parts);
}

// Returns the rows that the ranks have added, in rank order, on the CPU; undefined if no rank has added a row. Error if
// rows differ in type or shape. `batch`: another number in each call. Collective.
at::Tensor from_all_ranks(rank::RankSession& session, const std::string& name, std::int64_t batch,
                          GatheredMetric& metric) {
  const std::vector<at::Tensor> added = metric.take();
  for (const at::Tensor& rows : added) {
    const bool fits = rows.dim() > 0 && rows.scalar_type() == added.front().scalar_type() &&
                      rows.sizes().slice(1) == added.front().sizes().slice(1);
    if (!fits) {
      throw Error("the metric '" + name + "' was given rows of several forms",
                  "give add() tensors of one type whose first dimension counts the rows, and whose other dimensions "
                  "are equal");
    }
  }
  return gather_rows(session, "the metric '" + name + "'", "train/gathered/" + name + "/" + std::to_string(batch),
                     added.empty() ? at::Tensor() : at::cat(added));
}

// Returns the sum of the ranks' tensors, float64 on the CPU, the same on every rank; undefined if no rank has one.
// Error if shapes differ. `batch`: as above. Collective.
at::Tensor from_all_ranks(rank::RankSession& session, const std::string& name, std::int64_t batch,
                          SummedMetric& metric) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = metric.take();
  const Json mine = own.defined() ? Json(own.sizes().vec()) : Json();
  const std::vector<std::string> texts =
      session.control().gather("train/summed/" + name + "/" + std::to_string(batch), mine.dump());
  Json shape;
  std::size_t first_rank = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json of_rank = Json::parse(texts[rank]);
    if (of_rank.is_null()) continue;
    if (shape.is_null()) {
      shape = of_rank;
      first_rank = rank;
    }
    if (of_rank == shape) continue;
    throw Error("the metric '" + name + "' has sums of shape " + of_rank.dump() + " on rank " + std::to_string(rank) +
                    ", and of " + shape.dump() + " on rank " + std::to_string(first_rank),
                "give it tensors of one shape on all ranks");
  }
  if (shape.is_null()) return {};
  const at::Tensor sums =
      own.defined() ? own.to(at::kCPU).contiguous() : at::zeros(shape.get<std::vector<std::int64_t>>(), at::kDouble);
  const auto count = static_cast<std::size_t>(sums.numel());
  if (count > 0) session.communicator().all_reduce(sums.data_ptr(), count, comm::DataType::kFloat64).wait();
  return sums;
}

Loader validation_loader(Trial& trial, const rank::RankSession& session) {
  seed_draws_alike(session, Draws::kValidation, -1);
  return trial.validation_loader();
}

}  // namespace

Validation::Validation(Trial& trial, TrialContext& context, rank::RankSession& session, TrainingStep& step,
                       std::string stopping_metric)
    : trial_(trial),
      context_(context),
      session_(session),
      step_(step),
      loader_(validation_loader(trial, session)),
      skipped_(session, "validation"),
      feed_(context.device()),
      stopping_metric_(std::move(stopping_metric)),
      in_flight_(context.device(), session.device_communicator(), session.recorder()),
      metrics_(static_cast<std::size_t>(session.logical().count()),
               MetricReducer("validation", session.control(), session.communicator())) {
  require_logical_batches(session, loader_, "validation_loader");
  const std::string& metric = session.experiment().searcher.metric;
  if (!loader_ && !metric.empty() && session.world().rank == 0) {
    session.log()->warn("searcher.metric is '{}', but there is no validation data: it has no effect", metric);
  }
  const bool has_period = session.experiment().min_validation_period.count > 0;
  if (!loader_ && has_period && !session.mock().any() && session.world().rank == 0) {
    session.log()->warn("min_validation_period is set, but there is no validation data: it has no effect");
  }
  if (!loader_ && !stopping_metric_.empty()) {
    throw ConfigError("early stopping needs validation data, of which there is none",
                      "return a loader from validation_loader(), or leave early stopping out");
  }
  if (!loader_ && context.wrapped().plateau) {
    throw ConfigError("a learning rate that falls on a plateau needs validation data, of which there is none",
                      "return a loader from validation_loader() (model: data.validation), or leave the plateau out");
  }
}

std::optional<Validation::Result> Validation::run(std::int64_t batch, std::int64_t epoch) {
  if (!loader_ || last_batch_ == batch) return std::nullopt;
  last_batch_ = batch;
  each_batch(batch, [&](const Batch& part) {
    Metrics logged;
    MetricReducer& metrics = metrics_[session_.logical().index()];
    metrics.add(evaluate(part, logged), part.samples);
    SkippedSamples::add_metric(*loader_, part, logged);
    metrics.add_logged(logged, part.samples);
  });
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kValidation);
  ReducedMetrics reduced = reduce();
  add_metrics_of_all(reduced, batch);
  const Result result = judge(reduced);
  if (session_.world().rank == 0) report(reduced, result, batch, epoch);
  return result;
}

void Validation::each_batch(std::int64_t batch, const std::function<void(const Batch&)>& visit) {
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kValidation);
  const TensorMemory::Interlude interlude;
  torch::nn::Module& model = *context_.wrapped().model;
  broadcast_buffers(model, session_.device_communicator());
  {
    const auto averages = step_.weight_averages();
    const auto averaged = averages.empty() ? nullptr : step_.values_in_model(averages, /*as_computed=*/true);
    const EvaluationMode evaluation(model);
    const at::NoGradGuard no_grad;
    const rank::LogicalRanks ranks = session_.logical();
    LogicalBuffers* const buffers = step_.logical_buffers();
    if (buffers) buffers->store_for_all();
    for (int logical = ranks.begin; logical < ranks.end; ++logical) {
      session_.act_as(logical);
      if (buffers) buffers->load(session_.logical().index());
      // Seeds anew, because a run that goes on from a checkpoint does not have the stream that the last batch left.
      seed_draws(session_, Draws::kValidation, batch);
      if (logical == ranks.begin) loader_->start_epoch(0);
      visit_part(visit);
      if (buffers) buffers->store(session_.logical().index());
    }
    session_.act_as(ranks.begin);
    if (buffers) buffers->load(0);
    in_flight_.finish_all();
  }
  feed_.let_go();
}

void Validation::visit_part(const std::function<void(const Batch&)>& visit) {
  while (auto part = loader_->next()) {
    Pulse::own().move();
    skipped_.see(*part);
    feed_.move(*part);
    visit(*part);
    in_flight_.end_batch();
  }
}

ReducedMetrics Validation::reduce() {
  if (!session_.logical().virtuals) return metrics_.front().reduce();
  std::vector<MetricReducer::Sums> sums;
  for (MetricReducer& metrics : metrics_) sums.push_back(metrics.take());
  return metrics_.front().reduce_in_tree(std::move(sums), session_.logical());
}

void Validation::predict(const std::filesystem::path& path, std::int64_t batch, std::int64_t epoch) {
  std::optional<PredictionFile> file;
  if (session_.world().rank == 0) file.emplace(path);
  std::int64_t round = 0;
  // In each round a rank has a batch or, near the end of the data, none. Parts of one global batch follow in rank
  // order.
  const auto exchange = [&](const at::Tensor& rows) {
    const at::Tensor all = gather_rows(session_, "predict_batch()", "train/predicted/" + std::to_string(round++), rows);
    if (all.defined() && file) file->add(all);
    return all.defined();
  };
  if (session_.logical().virtuals) {
    for (const at::Tensor& rows : predicted_by_rounds(batch)) exchange(rows);
  } else {
    each_batch(batch, [&](const Batch& part) { exchange(predicted(part)); });
  }
  while (exchange({})) {
  }
  if (!file) return;
  file->finish();
  session_.write_metrics({{"kind", "prediction"}, {"batch", batch}, {"epoch", epoch}, {"shape", file->shape()}});
}

std::vector<at::Tensor> Validation::predicted_by_rounds(std::int64_t batch) {
  std::vector<std::vector<at::Tensor>> rounds;
  std::vector<std::size_t> next(static_cast<std::size_t>(session_.logical().count()));
  each_batch(batch, [&](const Batch& part) {
    const std::size_t round = next[session_.logical().index()]++;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(predicted(part));
  });
  std::vector<at::Tensor> rows;
  for (const auto& of_ranks : rounds) rows.push_back(at::cat(of_ranks));
  return rows;
}

at::Tensor Validation::predicted(const Batch& batch) {
  const Autocast autocast(autocast_type(session_.experiment().optimizations.mixed_precision), context_.device());
  at::Tensor rows = trial_.predict_batch(batch);
  if (rows.defined() && rows.dim() > 0 && rows.size(0) == batch.samples) return rows;
  throw Error("predict_batch() has returned " +
                  (rows.defined() ? "a tensor of shape " + Json(rows.sizes().vec()).dump() : std::string("no tensor")) +
                  " for a batch of " + count_of(batch.samples, "sample"),
              "return a tensor whose first dimension counts the samples");
}

Validation::Result Validation::judge(const ReducedMetrics& reduced) {
  const auto& searcher = session_.experiment().searcher;
  std::vector<std::string> names;
  for (const auto& [name, mean] : reduced.means) names.push_back(name);
  require_metrics(names);
  Result result;
  result.metrics = reduced.means;
  if (searcher.metric.empty()) return result;
  const double value = reduced.means.at(searcher.metric);
  result.metric = value;
  result.best = is_better(value, best_, searcher.smaller_is_better);
  const int kept = session_.experiment().checkpoint_storage.save_trial_best;
  const auto places = static_cast<std::size_t>(std::max(0, kept - 1));  // places after the best value
  result.among_best = insert(value, result.best, places) && kept > 0;
  return result;
}

bool Validation::insert(double value, bool best, std::size_t places) {
  const bool smaller_is_better = session_.experiment().searcher.smaller_is_better;
  if (std::isnan(value)) return false;
  const double after_best = best ? best_.value_or(value) : value;  // a new best value moves the last one down
  const bool moves = !best || best_.has_value();
  if (best) best_ = value;
  if (!moves) return true;
  const auto place = std::find_if(next_best_.begin(), next_best_.end(),
                                  [&](double other) { return is_better(after_best, other, smaller_is_better); });
  const bool fits = static_cast<std::size_t>(place - next_best_.begin()) < places;
  next_best_.insert(place, after_best);
  if (next_best_.size() > places) next_best_.resize(places);
  return best || fits;
}

void Validation::add_metrics_of_all(ReducedMetrics& reduced, std::int64_t batch) {
  for (const auto& added : context_.around_the_loop().metrics) {
    const std::string& name = added.first;
    const auto computed = std::visit(
        [&](const auto& metric) -> std::optional<double> {
          const at::Tensor all = from_all_ranks(session_, name, batch, *metric);
          return all.defined() ? std::optional(metric->compute(all)) : std::nullopt;
        },
        added.second);
    if (!computed) continue;
    double value = *computed;
    // All ranks decide by the same value, whatever compute() rounds or draws.
    session_.communicator().broadcast(&value, 1, comm::DataType::kFloat64, 0).wait();
    if (!reduced.means.emplace(name, value).second) {
      throw Error("the validation metric '" + name + "' is added by context.add_metric() and returned for batches, too",
                  "give one of them another name");
    }
  }
}

bool is_better(double value, const std::optional<double>& best, bool smaller_is_better) {
  if (std::isnan(value)) return false;
  return !best || (smaller_is_better ? value < *best : value > *best);
}

void Validation::require_metrics(const std::vector<std::string>& names) const {
  const auto require = [&](const char* key, const std::string& metric) {
    if (metric.empty() || std::find(names.begin(), names.end(), metric) != names.end()) return;
    const bool is_added = context_.around_the_loop().metrics.contains(metric);
    throw rank::AgreedError(
        std::string(key) + " is '" + metric + "', " +
            (is_added ? "for which no batch has given anything" : "which evaluate_batch() does not return"),
        "use one of: " + join(names, ", "));
  };
  require("searcher.metric", session_.experiment().searcher.metric);
  require("the metric of early stopping", stopping_metric_);
}

Metrics Validation::evaluate(const Batch& batch, Metrics& logged) {
  const Autocast autocast(autocast_type(session_.experiment().optimizations.mixed_precision), context_.device());
  auto& log = context_.around_the_loop().logged;
  log.emplace();
  Metrics metrics = trial_.evaluate_batch(batch);
  logged = *std::exchange(log, std::nullopt);
  refuse_both(metrics, logged, "evaluate_batch()");
  return metrics;
}

void refuse_both(const Metrics& returned, const Metrics& logged, const char* function) {
  for (const auto& [name, value] : logged) {
    if (!returned.contains(name)) continue;
    throw Error("context.log(\"" + name + "\"): " + function + " returns a metric of that name, too",
                "give one of them another name");
  }
}

void Validation::check_metric() {
  if (!loader_ || (session_.experiment().searcher.metric.empty() && stopping_metric_.empty())) return;
  loader_->start_epoch(0);
  auto part = loader_->next();
  if (!part) return;
  const EvaluationMode evaluation(*context_.wrapped().model);
  const at::NoGradGuard no_grad;
  feed_.move(*part);
  std::vector<std::string> names;
  Metrics logged;
  for (const auto& [name, value] : evaluate(*part, logged)) names.push_back(name);
  for (const auto& [name, value] : logged) names.push_back(name);
  for (const auto& [name, metric] : context_.around_the_loop().metrics) {
    names.push_back(name);
    std::visit([](const auto& kind) { kind->take(); }, metric);
  }
  require_metrics(names);
}

void Validation::visit(StateVisitor& visitor) {
  visitor.number("last_batch", last_batch_);
  visitor.real("best", best_);
  if (session_.experiment().checkpoint_storage.save_trial_best < 2) return;
  Json values = Json::array();
  for (const double value : next_best_) values.push_back(number_or_text(value));
  std::string next_best = values.dump();
  visitor.text("next_best", next_best);
  if (!visitor.replaces()) return;
  next_best_.clear();
  for (const Json& value : Json::parse(next_best)) next_best_.push_back(number_of(value).value_or(0));
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
