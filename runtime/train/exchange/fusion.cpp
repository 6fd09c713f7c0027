#include "exchange/fusion.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>

#include "dtrain/base/choices.h"
#include "dtrain/base/file.h"
#include "dtrain/base/numeric.h"
#include "dtrain/comm/compression.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::train {
namespace {

// The times of a step are there in the end_step() that follows the end of its batch.
static_assert(StepsInFlight::kMost + 1 <= comm::FusionTuner::kMostLag);

std::vector<comm::FusionItem> items_of(const FlatParameters& parameters) {
  std::vector<comm::FusionItem> items;
  for (const auto& p : parameters.parameters()) {
    items.push_back({p.group, p.offset, p.offset + p.padded, parameters.groups()[p.group].gradient_size, p.model});
  }
  return items;
}

std::vector<double> microseconds(std::span<const Nanoseconds> times) {
  std::vector<double> result;
  for (const Nanoseconds time : times) result.push_back(static_cast<double>(time.count()) / 1e3);
  return result;
}

// Tells codecs apart whose exchanges take different times.
Json json_of(const comm::Compression& compression) {
  Json json{word_of(compression)};
  if (const auto* const factors = std::get_if<comm::PowerSgd>(&compression)) json.push_back(factors->rank);
  if (const auto* const largest = std::get_if<comm::TopK>(&compression)) json.push_back(largest->ratio);
  return json;
}

// Returns the host number of every rank. Hosts are numbered in the order of ranks 0, 1, …. Collective.
std::vector<std::size_t> hosts_of_ranks(const RunServices& run) {
  std::vector<std::string> seen;
  std::vector<std::size_t> numbers;
  for (const std::string& host : run.control.gather("train/hosts", run.world.host)) {
    const auto place = std::find(seen.begin(), seen.end(), host);
    numbers.push_back(static_cast<std::size_t>(place - seen.begin()));
    if (place == seen.end()) seen.push_back(host);
  }
  return numbers;
}

double ms_per_mb(const comm::LinkModel& link) {
  return link.us_per_byte * (1 << 20) / 1e3;
}

// Returns the parts of an answer that all ranks need.
Json brief_json(const FusionAnswer& answer) {
  return {{"cuts", answer.cuts}, {"latency_us", answer.link.latency_us}, {"us_per_byte", answer.link.us_per_byte}};
}

FusionAnswer brief_answer(const Json& json) {
  return {json.at("cuts").get<std::vector<std::size_t>>(),
          {json.at("latency_us").get<double>(), json.at("us_per_byte").get<double>()},
          {}};
}

}  // namespace

Fusion::Fusion(const FlatParameters& parameters, const RunServices& run, const FusionOptions& options)
    : run_(run),
      communicator_(run.communicator),
      options_(options),
      items_(items_of(parameters)),
      plans_{comm::plan_fusion(items_, options.threshold_bytes)},
      ready_samples_(items_.size()),
      exposed_us_(plan().buckets.size()) {
  if (communicator_.world_size() == 1) return;
  if (!options_.auto_tune) {
    gaps_due_ = options_.cycle_ms > 0 && items_.size() > 1;
    if (gaps_due_) link_ = comm::measure_link(run.device_communicator, communicator_);
    return;
  }
  const std::vector<std::size_t> hosts = hosts_of_ranks(run);
  cache_.emplace(options_.cache_folder, cache_key(parameters, hosts));
  const auto known = remembered(/*several_hosts=*/std::count(hosts.begin(), hosts.end(), 0u) < std::ssize(hosts));
  // All ranks would log the same.
  const Logger log = run.is_first_rank() ? run.log : make_null_logger();
  tuner_ =
      std::make_unique<comm::FusionTuner>(items_, comm::FusionRule{options_.threshold_bytes, options_.cycle_ms * 1e3},
                                          run.device_communicator, communicator_, log, known);
  if (known) {
    adopt(tuner_->plan(), "remembered");
    tuner_.reset();
  }
}

Json Fusion::cache_key(const FlatParameters& parameters, const std::vector<std::size_t>& hosts) const {
  Json sizes = Json::array();
  for (const auto& p : parameters.parameters()) sizes.push_back(p.gradient.nbytes());
  return {{"dtrain", rank::version()},
          {"gradients", sizes},
          {"threshold", options_.threshold_bytes},
          {"cycle_ms", options_.cycle_ms},
          {"batch", options_.batch_per_rank},
          {"aggregation_frequency", options_.aggregation_frequency},
          {"sharded", options_.sharded},
          {"hosts", hosts},
          {"backend", std::string(run_.device_communicator.backend())},
          {"compression", json_of(options_.compression)},
          {"precision", options_.precision},
          {"gpu", options_.gpu},
          {"threads", at::get_num_threads()}};
}

// Returns the cuts that rank 0's cache, one of many, remembers. Collective. Between hosts they count only if the link
// is unchanged: the same hosts may have several, and the best plan of one may be worse than the default on another.
std::optional<std::vector<std::size_t>> Fusion::remembered(bool several_hosts) {
  std::optional<FusionAnswer> found;
  if (run_.is_first_rank()) {
    found = cache_->find(items_.size(), run_.log);
    run_.control.set("train/fusion", found ? to_line(brief_json(*found)) : "");
  } else if (const std::string text = run_.control.get("train/fusion"); !text.empty()) {
    found = brief_answer(Json::parse(text));
  }
  if (!found) return std::nullopt;
  if (several_hosts) {
    const comm::LinkModel now = comm::measure_link(run_.device_communicator, communicator_);
    if (!comm::alike(found->link, now)) {
      if (run_.is_first_rank()) {
        run_.log->info(
            "tensor fusion: the plan that an earlier run found is for another link: an exchange took {:.0f} us and "
            "{:.2f} "
            "ms a MB then, and takes {:.0f} us and {:.2f} ms a MB now",
            found->link.latency_us, ms_per_mb(found->link), now.latency_us, ms_per_mb(now));
      }
      return std::nullopt;
    }
  }
  if (run_.is_first_rank()) {
    link_ = found->link;
    ready_us_ = found->ready_us;
  }
  return found->cuts;
}

std::int64_t Fusion::settled_steps() const {
  const int lag = on_device() && options_.cycle_ms > 0 ? comm::FusionTuner::kMostLag : 0;
  if (!options_.auto_tune) return kWarmUpSteps + kGapSteps + lag;
  // The tuner begins when a codec's warm-up has ended.
  return comm::FusionTuner::kMaxSteps + comm::codec_maker(options_.compression).warmup_steps;
}

GradientExchange::DeviceTimes Fusion::device_times() const {
  using Times = GradientExchange::DeviceTimes;
  if (!settling()) return Times::kNone;
  return gaps_due_ || tuner_->wants_ready_times() ? Times::kGradients : Times::kExchange;
}

bool Fusion::end_step(GradientExchange& exchange, StepsInFlight& in_flight, bool as_usual) {
  add_exposed(exchange);
  if (!settling()) return false;
  if (gaps_due_ || as_usual) {
    if (tuner_) tuner_->end_step();
    note_times(exchange, in_flight);
  }
  bool changed = false;
  for (const auto& times : std::exchange(arrived_, {})) {
    if (tuner_) {
      tuner_->add_times(times.ready_us, times.exchange);
    } else if (gaps_due_) {
      changed |= look_at_gaps(times.ready_us);
    }
  }
  return tuner_ ? follow_tuner() : changed;
}

void Fusion::add_exposed(const GradientExchange& exchange) {
  // On a device a Work has only begun: its exposed time is in its late record (CollectiveLog) and not known here.
  if (on_device()) return;
  const auto works = exchange.works();
  for (std::size_t b = 0; b < works.size() && b < exposed_us_.size(); ++b) {
    exposed_us_[b] += static_cast<double>(works[b].timing().exposed.count()) / 1e3;
  }
  ++exposed_steps_;
}

void Fusion::note_times(GradientExchange& exchange, StepsInFlight& in_flight) {
  if (on_device()) {
    in_flight.when_ended(
        [this, marks = exchange.take_device_times()] { arrived_.push_back(marks->read(items_.size())); });
    return;
  }
  arrived_.push_back({microseconds(exchange.ready_times()),
                      {static_cast<double>(exchange.exchanged().count()) / 1e3,
                       static_cast<double>(exchange.exposed().count()) / 1e3}});
}

bool Fusion::follow_tuner() {
  const bool changed = !(tuner_->plan() == plan());
  if (changed) adopt(tuner_->plan(), "being tuned");
  if (tuner_->done()) end_tuning();
  return changed;
}

bool Fusion::look_at_gaps(std::span<const double> ready_us) {
  if (++steps_ <= kWarmUpSteps) return false;
  for (std::size_t i = 0; i < items_.size(); ++i) ready_samples_[i].push_back(ready_us[i]);
  if (steps_ < kWarmUpSteps + kGapSteps) return false;
  gaps_due_ = false;
  std::vector<double> middles;
  for (auto samples : ready_samples_) middles.push_back(std::max(0.0, median_high(samples)));
  ready_us_ = comm::max_over_ranks(communicator_, middles);
  const comm::FusionPlan with_gaps =
      comm::plan_fusion(items_, options_.threshold_bytes, ready_us_, options_.cycle_ms * 1e3);
  if (with_gaps == plan()) return false;
  if (run_.is_first_rank()) {
    run_.log->info(
        "tensor fusion: {} buckets instead of {}: gradients more than {:g} ms apart do not wait for each other",
        with_gaps.buckets.size(), plan().buckets.size(), options_.cycle_ms);
  }
  adopt(with_gaps, "threshold and gaps");
  return true;
}

void Fusion::adopt(const comm::FusionPlan& next, std::string how) {
  plans_.push_back(next);
  how_ = std::move(how);
  forget_exposed();
}

void Fusion::forget_exposed() {
  exposed_us_.assign(plan().buckets.size(), 0);
  exposed_steps_ = 0;
}

void Fusion::end_tuning() {
  how_ = "tuned";
  link_ = tuner_->link();
  ready_us_.assign(tuner_->ready_us().begin(), tuner_->ready_us().end());
  if (run_.is_first_rank()) {
    cache_->store({tuner_->cuts(), *link_, ready_us_}, tuner_->report(), run_.log);
    Json report = tuner_->report();
    run_.write_event("fusion_tuned", report);
  }
  tuner_.reset();
}

Json Fusion::describe() const {
  std::vector<double> predicted;
  if (link_ && !ready_us_.empty()) predicted = comm::predict_exposed_us(plan(), ready_us_, *link_);
  Json buckets = Json::array();
  for (std::size_t b = 0; b < plan().buckets.size(); ++b) {
    Json bucket{{"bytes", plan().buckets[b].bytes}, {"gradients", plan().buckets[b].items.size()}};
    bucket["predicted_exposed_ms"] = predicted.empty() ? Json() : Json(predicted[b] / 1e3);
    bucket["measured_exposed_ms"] =
        exposed_steps_ == 0 ? Json() : Json(exposed_us_[b] / static_cast<double>(exposed_steps_) / 1e3);
    buckets.push_back(bucket);
  }
  Json json{{"by", how_}, {"steps", exposed_steps_}, {"buckets", buckets}};
  if (link_) {
    json["link"] = Json{{"latency_us", link_->latency_us}, {"ms_per_mb", ms_per_mb(*link_)}};
  }
  return json;
}

void write_gradient_sizes(const std::filesystem::path& file, const FlatParameters& parameters) {
  std::string text = "order,name,dtype,shape,elements,bytes\n";
  int order = 0;
  for (const auto& p : parameters.parameters()) {
    std::string shape;
    for (const std::int64_t size : p.gradient.sizes()) shape += (shape.empty() ? "" : "x") + std::to_string(size);
    text += std::to_string(order++) + "," + p.name + "," + at::toString(p.gradient.scalar_type()) + "," + shape + "," +
            std::to_string(p.tensor.numel()) + "," + std::to_string(p.gradient.nbytes()) + "\n";
  }
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
  write_file_atomic(file, text);
}

FusionCache::FusionCache(const std::filesystem::path& folder, Json key) : cache_(folder, "fusion", std::move(key)) {}

std::optional<FusionAnswer> FusionCache::find(std::size_t gradients, const Logger& log) const {
  const auto json = cache_.find(log);
  if (!json) return std::nullopt;
  try {
    FusionAnswer answer;
    answer.cuts = json->at("cuts").get<std::vector<std::size_t>>();
    answer.ready_us = json->at("ready_us").get<std::vector<double>>();
    answer.link = {json->at("latency_us").get<double>(), json->at("us_per_byte").get<double>()};
    const auto& cuts = answer.cuts;
    const bool rising = std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end();
    const bool complete = !cuts.empty() && cuts.back() + 1 == gradients && answer.ready_us.size() == gradients;
    if (rising && complete) return answer;
    log->warn("{} holds no plan for {} gradients and is not used", file().string(), gradients);
  } catch (const std::exception& error) {
    log->warn("the remembered fusion plan is not used: {}: {}", file().string(), error.what());
  }
  return std::nullopt;
}

void FusionCache::store(const FusionAnswer& answer, const Json& report, const Logger& log) const {
  const bool stored = cache_.store({{"cuts", answer.cuts},
                                    {"ready_us", answer.ready_us},
                                    {"latency_us", answer.link.latency_us},
                                    {"us_per_byte", answer.link.us_per_byte},
                                    {"report", report}},
                                   log);
  if (stored) log->info("tensor fusion: remembered in {}", file().string());
}

}  // namespace dtrain::train
