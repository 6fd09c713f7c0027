#include "loop/metric_reducer.h"

#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/json_number.h"

namespace dtrain::train {

MetricReducer::MetricReducer(std::string kind, comm::ControlPlane& control, comm::Communicator& communicator)
    : kind_(std::move(kind)), control_(control), communicator_(communicator) {}

void MetricReducer::add(const Metrics& metrics, std::int64_t samples) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : metrics) {
    added_.weights[name] += samples;
    if (!value.is_on_device()) {
      added_.sums[name] += value.value() * static_cast<double>(samples);
      continue;
    }
    at::Tensor& sum = on_device_[name];
    if (!sum.defined()) {
      const auto restored = restored_.extract(name);
      sum = at::full({}, restored ? restored.mapped() : 0.0, value.tensor().options().dtype(at::kDouble));
    }
    sum.add_(value.tensor().reshape({}), static_cast<double>(samples));
  }
  added_.samples += samples;
}

MetricReducer::Sums MetricReducer::take() {
  for (const auto& [name, sum] : restored_) added_.sums[name] += sum;  // to which no batch has added
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
  std::string text = sums.dump();
  visitor.text("sums", text);
  if (!visitor.replaces()) return;
  sums = Json::parse(text);
  added_ = {};
  added_.samples = sums["samples"].get<std::int64_t>();
  added_.weights = sums["weights"].get<std::map<std::string, std::int64_t>>();
  for (const auto& [name, sum] : sums["sums"].items()) added_.sums[name] = number_of(sum).value_or(0);
  on_device_.clear();
  restored_.clear();
  for (const auto& [name, sum] : sums["on_device"].items()) restored_[name] = number_of(sum).value_or(0);
}

void MetricReducer::Sums::add_device_sums(std::span<const double> values) {
  for (std::size_t i = 0; i < device_names.size(); ++i) sums[device_names[i]] += values[i];
  device_sums = at::Tensor();
}

void MetricReducer::agree_on_names(Sums& own) {
  if (communicator_.world_size() == 1) return;
  Json mine = Json::array();
  for (const auto& [name, sum] : own.sums) mine.push_back(name);
  const auto all = control_.gather("train/metrics/" + kind_ + "/" + std::to_string(agreements_++),
                                   Json{{"names", mine}, {"samples", own.samples}}.dump());
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
  for (const std::string& name : names) own.sums.try_emplace(name, 0.0);
}

ReducedMetrics MetricReducer::reduce(Sums own) {
  agree_on_names(own);
  std::vector<double> values;
  for (const auto& [name, sum] : own.sums) values.push_back(sum);
  for (const auto& [name, sum] : own.sums) values.push_back(static_cast<double>(own.weights[name]));
  values.push_back(static_cast<double>(own.samples));  // exact up to 2^53
  communicator_.all_reduce(values.data(), values.size(), comm::DataType::kFloat64).wait();
  ReducedMetrics result;
  result.samples = static_cast<std::int64_t>(values.back());
  std::size_t i = 0;
  for (const auto& [name, sum] : own.sums) {
    const double weight = values[own.sums.size() + i];
    if (weight > 0) result.means[name] = values[i] / weight;
    ++i;
  }
  return result;
}

ReducedMetrics MetricReducer::local_means(const Sums& sums) {
  ReducedMetrics result;
  result.samples = sums.samples;
  for (const auto& [name, sum] : sums.sums) {
    const std::int64_t weight = sums.weights.at(name);
    if (weight > 0) result.means[name] = sum / static_cast<double>(weight);
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

}  // namespace dtrain::train
