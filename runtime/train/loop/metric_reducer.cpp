#include "loop/metric_reducer.h"

#include <set>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain::train {

MetricReducer::MetricReducer(std::string kind, comm::ControlPlane& control, comm::Communicator& communicator)
    : kind_(std::move(kind)), control_(control), communicator_(communicator) {}

void MetricReducer::add(const Metrics& metrics, std::int64_t samples) {
  for (const auto& [name, value] : metrics) {
    sums_[name] += value.value() * static_cast<double>(samples);
    weights_[name] += samples;
  }
  samples_ += samples;
}

void MetricReducer::agree_on_names() {
  if (communicator_.world_size() == 1) return;
  Json mine = Json::array();
  for (const auto& [name, sum] : sums_) mine.push_back(name);
  const auto all = control_.gather("train/metrics/" + kind_ + "/" + std::to_string(agreements_++),
                                   Json{{"names", mine}, {"samples", samples_}}.dump());
  std::vector<Json> parts;
  for (const std::string& text : all) parts.push_back(Json::parse(text));
  std::set<std::string> names;
  for (const Json& part : parts) {
    for (const auto& name : part["names"]) names.insert(name.get<std::string>());
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank]["samples"].get<std::int64_t>() == 0) continue;
    const auto has = parts[rank]["names"].get<std::set<std::string>>();
    for (const std::string& name : names) {
      if (!has.count(name)) {
        throw Error("the " + kind_ + " metric '" + name + "' is missing on rank " + std::to_string(rank),
                    "return the same metrics on every rank and in every batch");
      }
    }
  }
  for (const std::string& name : names) sums_.try_emplace(name, 0.0);
}

ReducedMetrics MetricReducer::reduce() {
  agree_on_names();
  std::vector<double> values;
  for (const auto& [name, sum] : sums_) values.push_back(sum);
  for (const auto& [name, sum] : sums_) values.push_back(static_cast<double>(weights_[name]));
  values.push_back(static_cast<double>(samples_));  // exact up to 2^53
  communicator_.all_reduce(values.data(), values.size(), comm::DataType::kFloat64).wait();
  ReducedMetrics result;
  result.samples = static_cast<std::int64_t>(values.back());
  std::size_t i = 0;
  for (const auto& [name, sum] : sums_) {
    const double weight = values[sums_.size() + i];
    if (weight > 0) result.means[name] = values[i] / weight;
    ++i;
  }
  sums_.clear();
  weights_.clear();
  samples_ = 0;
  return result;
}

ReducedMetrics MetricReducer::take_local() {
  ReducedMetrics result;
  result.samples = samples_;
  for (const auto& [name, sum] : sums_) {
    if (weights_[name] > 0) result.means[name] = sum / static_cast<double>(weights_[name]);
  }
  sums_.clear();
  weights_.clear();
  samples_ = 0;
  return result;
}

}  // namespace dtrain::train
