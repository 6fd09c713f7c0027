#include "loop/metrics.h"

#include <limits>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "checkpoint/restore.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/config/experiment.h"
#include "exchange/gradient_tree.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

namespace {

bool is_extreme(Reduction reduction) {
  return reduction == Reduction::kMin || reduction == Reduction::kMax;
}

const char* name_of(Reduction reduction) {
  constexpr const char* kNames[] = {"mean", "sum", "minimum", "maximum"};
  return kNames[static_cast<std::size_t>(reduction)];
}

double neutral(Reduction reduction) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return reduction == Reduction::kMin ? kInfinity : reduction == Reduction::kMax ? -kInfinity : 0;
}

void combine(Reduction reduction, double& value, double with) {
  value = combined(reduction, value, with);
}

double mean_of(double sum, double weight) {
  return weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN();
}

double& value_of(MetricReducer::Sums& sums, const std::string& name) {
  return sums.sums.try_emplace(name, neutral(sums.reduction_of(name))).first->second;
}

// Throws Error that names a metric whose tensor does not have exactly one element.
void require_single_values(const Metrics& metrics, const std::string& kind) {
  for (const auto& [name, value] : metrics) {
    if (!value.tensor().defined() || value.tensor().numel() == 1) continue;
    std::ostringstream shape;
    shape << value.tensor().sizes();
    throw Error("the " + kind + " metric '" + name + "' is a tensor of shape " + shape.str(),
                "a metric is a number, or a tensor of one element: its mean() over the batch, say");
  }
}

// Reads the values now: later batches may change a tensor (a buffer of the model, a parameter) before it is added up.
void read_values(Metrics& metrics) {
  require_single_values(metrics, "training");
  for (auto& [name, value] : metrics) value = value.as_number();
}

}  // namespace

MetricReducer::MetricReducer(std::string kind, comm::ControlPlane& control, comm::Communicator& communicator)
    : kind_(std::move(kind)), control_(control), communicator_(communicator) {}

void MetricReducer::add(const Metrics& metrics, std::int64_t samples) {
  add_values(metrics, samples);
  added_.samples += samples;
}

void MetricReducer::add_logged(const Metrics& metrics, std::int64_t samples) {
  for (const auto& [name, value] : metrics) added_.logged.insert(name);
  add_values(metrics, samples);
}

void MetricReducer::add_values(const Metrics& metrics, std::int64_t samples) {
  const at::NoGradGuard no_grad;
  require_single_values(metrics, kind_);
  for (const auto& [name, value] : metrics) {
    const Reduction how = value.reduction();
    const bool is_new = !added_.weights.contains(name);
    if (!is_new && added_.reduction_of(name) != how) {
      throw Error("the " + kind_ + " metric '" + name + "' is a " + name_of(added_.reduction_of(name)) +
                      " in one batch and a " + name_of(how) + " in another",
                  "give each name one reduction");
    }
    if (how != Reduction::kMean) added_.reductions[name] = how;
    const double weight = value.weight().value_or(static_cast<double>(samples));
    added_.weights[name] += weight;
    if (value.weight() && weight == 0) {
      value_of(added_, name);  // also adds the name, if it is new
      continue;
    }
    const double factor = how == Reduction::kMean ? weight : 1.0;
    if (!value.is_on_device()) {
      combine(how, value_of(added_, name), value.value() * factor);
      continue;
    }
    at::Tensor& sum = on_device_[name];
    if (!sum.defined()) {
      const auto restored = restored_.extract(name);
      sum = at::full({}, restored ? restored.mapped() : neutral(how), value.tensor().options().dtype(at::kDouble));
    }
    const at::Tensor number = value.tensor().reshape({});
    if (!is_extreme(how)) {
      sum.add_(number, factor);
    } else {
      sum.copy_(how == Reduction::kMin ? at::minimum(sum, number.to(at::kDouble))
                                       : at::maximum(sum, number.to(at::kDouble)));
    }
  }
}

Reduction MetricReducer::Sums::reduction_of(const std::string& name) const {
  const auto found = reductions.find(name);
  return found == reductions.end() ? Reduction::kMean : found->second;
}

MetricReducer::Sums MetricReducer::take() {
  for (const auto& [name, sum] : restored_) {  // for names to which no batch has added
    combine(added_.reduction_of(name), value_of(added_, name), sum);
  }
  restored_.clear();
  std::vector<at::Tensor> values;
  for (const auto& [name, sum] : on_device_) {
    added_.device_names.push_back(name);
    values.push_back(sum);
  }
  if (!values.empty()) added_.device_sums = at::stack(values);
  on_device_.clear();
  return std::exchange(added_, {});
}

void MetricReducer::visit(StateVisitor& visitor) {
  Json sums = {{"samples", added_.samples}, {"weights", added_.weights}, {"sums", numbers_or_texts(added_.sums)}};
  std::map<std::string, double> on_device = restored_;
  for (const auto& [name, sum] : on_device_) on_device[name] = sum.item<double>();
  sums["on_device"] = numbers_or_texts(on_device);
  if (!added_.reductions.empty()) sums["reductions"] = added_.reductions;
  if (!added_.logged.empty()) sums["logged"] = added_.logged;
  std::string text = sums.dump();
  visitor.text("sums", text);
  if (!visitor.replaces()) return;
  sums = Json::parse(text);
  added_ = {};
  added_.samples = sums["samples"].get<std::int64_t>();
  added_.weights = sums["weights"].get<std::map<std::string, double>>();
  for (const auto& [name, sum] : sums["sums"].items()) added_.sums[name] = number_of(sum).value_or(0);
  added_.reductions = sums.value("reductions", std::map<std::string, Reduction>());
  added_.logged = sums.value("logged", std::set<std::string>());
  on_device_.clear();
  restored_.clear();
  for (const auto& [name, sum] : sums["on_device"].items()) restored_[name] = number_of(sum).value_or(0);
}

void MetricReducer::Sums::add_device_sums(std::span<const double> values) {
  for (std::size_t i = 0; i < device_names.size(); ++i) {
    combine(reduction_of(device_names[i]), value_of(*this, device_names[i]), values[i]);
  }
  device_sums = at::Tensor();
}

void MetricReducer::agree_on_names(std::span<Sums> own) {
  if (communicator_.world_size() == 1 && own.size() == 1) return;
  Json mine = Json::array();
  for (const Sums& sums : own) {
    Json names = Json::array();
    for (const auto& [name, sum] : sums.sums) names.push_back(name);
    mine.push_back(
        {{"names", names}, {"samples", sums.samples}, {"reductions", sums.reductions}, {"logged", sums.logged}});
  }
  const auto all = control_.gather("train/metrics/" + kind_ + "/" + std::to_string(agreements_++), mine.dump());
  std::vector<Json> parts;
  for (const std::string& text : all) {
    for (Json& part : Json::parse(text)) parts.push_back(std::move(part));
  }
  std::set<std::string> names;
  std::set<std::string> logged;
  std::map<std::string, std::pair<Reduction, std::size_t>> reductions;  // with the first rank that has the name
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const auto others = parts[rank]["reductions"].get<std::map<std::string, Reduction>>();
    for (const auto& name : parts[rank]["names"].get<std::vector<std::string>>()) {
      names.insert(name);
      const auto other = others.find(name);
      const Reduction how = other == others.end() ? Reduction::kMean : other->second;
      const auto& [first, first_rank] = reductions.try_emplace(name, how, rank).first->second;
      if (first == how) continue;
      throw Error("the " + kind_ + " metric '" + name + "' is a " + name_of(first) + " on rank " +
                      std::to_string(first_rank) + " and a " + name_of(how) + " on rank " + std::to_string(rank),
                  "give each name one reduction");
    }
    for (const auto& name : parts[rank]["logged"]) logged.insert(name.get<std::string>());
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank]["samples"].get<std::int64_t>() == 0) continue;
    const auto has = parts[rank]["names"].get<std::set<std::string>>();
    for (const std::string& name : names) {
      if (!has.contains(name) && !logged.contains(name)) {
        throw Error("the " + kind_ + " metric '" + name + "' is missing on rank " + std::to_string(rank),
                    "return the same metrics on every rank and in every batch");
      }
    }
  }
  for (const std::string& name : names) {
    for (Sums& sums : own) {
      if (reductions.at(name).first != Reduction::kMean) sums.reductions[name] = reductions.at(name).first;
      value_of(sums, name);
    }
  }
}

namespace {

// The sums and weights of each name, then the samples. Extreme values count in `greatest`; smallest values have the
// other sign there.
void add_row(MetricReducer::Sums& own, std::vector<double>& values) {
  for (const auto& [name, sum] : own.sums) values.push_back(is_extreme(own.reduction_of(name)) ? 0 : sum);
  for (const auto& [name, sum] : own.sums) values.push_back(own.weights[name]);
  values.push_back(static_cast<double>(own.samples));  // exact up to 2^53
}

}  // namespace

ReducedMetrics MetricReducer::means_of(const Sums& names, std::span<const double> sums) {
  std::vector<double> greatest;  // smallest values have the other sign
  for (const auto& [name, sum] : names.sums) {
    const Reduction how = names.reduction_of(name);
    if (is_extreme(how)) greatest.push_back(how == Reduction::kMin ? -sum : sum);
  }
  if (!greatest.empty()) {
    communicator_.all_reduce(greatest.data(), greatest.size(), comm::DataType::kFloat64, {.op = comm::ReduceOp::kMax})
        .wait();
  }
  ReducedMetrics result;
  result.samples = static_cast<std::int64_t>(sums.back());
  std::size_t i = 0;
  std::size_t extreme = 0;
  for (const auto& [name, sum] : names.sums) {
    const Reduction how = names.reduction_of(name);
    const double weight = sums[names.sums.size() + i];
    const double value = is_extreme(how) ? greatest[extreme++] : sums[i];
    ++i;
    result.means[name] = how == Reduction::kMean ? mean_of(value, weight) : how == Reduction::kMin ? -value : value;
  }
  return result;
}

ReducedMetrics MetricReducer::reduce(Sums own) {
  agree_on_names({&own, 1});
  std::vector<double> values;
  add_row(own, values);
  communicator_.all_reduce(values.data(), values.size(), comm::DataType::kFloat64).wait();
  return means_of(own, values);
}

ReducedMetrics MetricReducer::reduce_in_tree(std::vector<Sums> own, const rank::LogicalRanks& ranks) {
  agree_on_names(own);
  std::vector<double> rows;
  for (Sums& sums : own) add_row(sums, rows);
  const std::vector<double> values = sum_in_tree(communicator_, ranks, rows, rows.size() / own.size());
  Sums& extremes = own.front();
  for (const Sums& sums : std::span(own).subspan(1)) {
    for (const auto& [name, sum] : sums.sums) {
      const Reduction how = sums.reduction_of(name);
      if (is_extreme(how)) combine(how, extremes.sums.at(name), sum);
    }
  }
  return means_of(extremes, values);
}

ReducedMetrics MetricReducer::local_means(const Sums& sums) {
  ReducedMetrics result;
  result.samples = sums.samples;
  for (const auto& [name, sum] : sums.sums) {
    const bool is_mean = sums.reduction_of(name) == Reduction::kMean;
    result.means[name] = is_mean ? mean_of(sum, sums.weights.at(name)) : sum;
  }
  return result;
}

ReducedMetrics MetricReducer::reduce() {
  Sums own = take();
  if (own.device_sums.defined()) {
    const at::Tensor values = own.device_sums.to(at::kCPU);
    own.add_device_sums({values.const_data_ptr<double>(), own.device_names.size()});
  }
  return reduce(std::move(own));
}

TrainingMetrics::TrainingMetrics(rank::RankSession& session, TrainingStep& step, const Position& position,
                                 ProgressMeter& progress)
    : session_(session),
      step_(step),
      position_(position),
      progress_(progress),
      sums_(static_cast<std::size_t>(session.logical().count()),
            MetricReducer("training", session.control(), session.communicator())) {}

void TrainingMetrics::keep(Metrics metrics, std::int64_t samples) {
  if (step_.parameters().memory().on_host()) {
    read_values(metrics);
    unread_.push_back({session_.logical().index(), std::move(metrics), samples});
    return;
  }
  sums_.front().add(metrics, samples);
  const auto loss = metrics.find("loss");
  if (session_.world().rank != 0 || loss == metrics.end()) return;
  if (!loss->second.is_on_device()) return progress_.add_loss(loss->second.value());
  step_.in_flight().read(loss->second.tensor(),
                         [this](std::span<const double> value) { progress_.add_loss(value.front()); });
}

void TrainingMetrics::keep_logged(Metrics metrics, std::int64_t samples) {
  if (metrics.empty()) return;
  if (step_.parameters().memory().on_host()) {
    read_values(metrics);
    unread_logs_.push_back({session_.logical().index(), std::move(metrics), samples});
  } else {
    sums_.front().add_logged(metrics, samples);
  }
}

void TrainingMetrics::show_losses() {
  for (; shown_ < unread_.size(); ++shown_) {
    if (unread_[shown_].index == 0) progress_.add_loss(unread_[shown_].metrics);
  }
}

void TrainingMetrics::add_unread() {
  if (session_.world().rank == 0) show_losses();
  shown_ = 0;
  for (const auto& [index, metrics, samples] : unread_) sums_[index].add(metrics, samples);
  for (const auto& [index, metrics, samples] : unread_logs_) sums_[index].add_logged(metrics, samples);
  unread_.clear();
  unread_logs_.clear();
}

void TrainingMetrics::begin() {
  step_.check_members();
  step_.write_reports();
  const PhaseScope phase(session_.recorder(), Phase::kFromDevice);
  add_unread();
  due_.push_back(
      {position_.batches, position_.epoch, step_.optimizer().steps(), step_.optimizer().last_learning_rate(), {}});
  Due& due = due_.back();
  for (MetricReducer& sums : sums_) due.sums.push_back(sums.take());
  MetricReducer::Sums& first = due.sums.front();
  if (!first.device_sums.defined()) return;
  step_.in_flight().read(first.device_sums,
                         [&first](std::span<const double> values) { first.add_device_sums(values); });
}

void TrainingMetrics::finish() {
  // Values that were requested after a batch arrive with the next batch.
  const std::int64_t lag = step_.in_flight().lag() == 0 ? 0 : step_.in_flight().lag() + 1;
  while (!due_.empty() && due_.front().batch + lag <= position_.batches) write_oldest();
}

void TrainingMetrics::finish_all() {
  if (due_.empty()) return;
  step_.in_flight().extend_batch();
  step_.in_flight().finish_all();
  while (!due_.empty()) write_oldest();
}

void TrainingMetrics::write_oldest() {
  const PhaseScope phase(session_.recorder(), Phase::kReduceMetrics);
  Due due = std::move(due_.front());
  due_.pop_front();
  const bool together = session_.experiment().optimizations.average_training_metrics && !session_.mock().alone();
  const rank::LogicalRanks& ranks = session_.logical();
  const ReducedMetrics reduced = ranks.virtuals ? sums_.front().reduce_in_tree(std::move(due.sums), ranks)
                                 : together     ? sums_.front().reduce(std::move(due.sums.front()))
                                                : MetricReducer::local_means(due.sums.front());
  if (session_.world().rank != 0 || reduced.samples == 0) return;
  Json line = {{"kind", "training"},
               {"batch", due.batch},
               {"epoch", due.epoch},
               {"samples", reduced.samples},
               {"optimizer_steps", due.optimizer_steps},
               {"learning_rate", number_or_text(due.learning_rate)}};
  if (const auto norm = step_.gradient_norms().of(due.batch)) line["gradient_norm"] = number_or_text(*norm);
  line["metrics"] = numbers_or_texts(reduced.means);
  session_.write_metrics(line);
}

void TrainingMetrics::prepare_visit() {
  step_.in_flight().finish_all();
  finish_all();
  add_unread();
}

}  // namespace dtrain::train
