#include "agent/prometheus_endpoint.h"

#include <exception>
#include <mutex>
#include <utility>

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain::profile {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::size_t kThreads = 1;  // threads that answer; Prometheus asks every few seconds

// The families of one answer; all values of a family are together.
class Families {
 public:
  explicit Families(const std::map<std::string, std::string>& labels) {
    for (const auto& [name, value] : labels) common_.push_back({name, value});
  }

  void family(const char* name, const char* help, MetricType type) { families_.push_back({name, help, type, {}}); }
  void gauge(const char* name, const char* help, const std::optional<double>& value) {
    if (!value) return;
    family(name, help, MetricType::Gauge);
    add({}, *value);
  }
  void add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = common_;
    for (ClientMetric::Label& label : labels) metric.label.push_back(std::move(label));
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    families_.back().metric.push_back(std::move(metric));
  }
  template <typename Items, typename ValueOf>
  void each(const char* name, const char* help, MetricType type, const char* label, const Items& items,
            const ValueOf& value_of) {
    family(name, help, type);
    for (const auto& item : items) {
      const auto [of, value] = value_of(item);
      if (value) add({{label, std::to_string(of)}}, *value);
    }
  }
  // Returns the families that have values.
  std::vector<MetricFamily> take() {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  Labels common_;
  std::vector<MetricFamily> families_;
};

using Value = std::pair<int, std::optional<double>>;

void add_system(Families& out, const SystemSample& sample) {
  for (const HostMetric& metric : kHostMetrics) out.gauge(metric.gauge, metric.help, sample.*metric.value);
  out.each("dtrain_gpu_util_percent", "Time in which a kernel ran", MetricType::Gauge, "gpu", sample.gpus,
           [](const GpuSample& gpu) { return Value(gpu.index, gpu.util); });
  out.each("dtrain_gpu_free_memory_bytes", "GPU memory that is not allocated", MetricType::Gauge, "gpu", sample.gpus,
           [](const GpuSample& gpu) {
             return Value(gpu.index, gpu.free_memory ? std::optional<double>(*gpu.free_memory) : std::nullopt);
           });
  out.each("dtrain_gpu_temperature_celsius", "Of the chip", MetricType::Gauge, "gpu", sample.gpus,
           [](const GpuSample& gpu) { return Value(gpu.index, gpu.temperature); });
  out.each("dtrain_rank_resident_memory_bytes", "Memory of a rank's process", MetricType::Gauge, "rank",
           sample.processes, [](const ProcessRecord& process) { return Value(process.rank, process.resident_bytes); });
  out.each("dtrain_rank_cpu_util_percent", "Of a rank's process; 100: one core", MetricType::Gauge, "rank",
           sample.processes, [](const ProcessRecord& process) { return Value(process.rank, process.cpu_percent); });
}

void add_ranks(Families& out, const std::vector<RankTotals>& ranks) {
  const auto each = [&](const char* name, const char* help, MetricType type, auto value_of) {
    out.each(name, help, type, "rank", ranks,
             [&](const RankTotals& rank) { return Value(rank.rank, static_cast<double>(value_of(rank))); });
  };
  each("dtrain_batch", "The last batch that ended", MetricType::Gauge, [](const RankTotals& r) { return r.batch; });
  each("dtrain_epoch", "Its epoch", MetricType::Gauge, [](const RankTotals& r) { return r.epoch; });
  each("dtrain_last_step_seconds", "How long it took", MetricType::Gauge,
       [](const RankTotals& r) { return to_seconds(r.last_step_ns); });
  each("dtrain_steps_total", "Batches", MetricType::Counter, [](const RankTotals& r) { return r.steps; });
  each("dtrain_samples_total", "Samples", MetricType::Counter, [](const RankTotals& r) { return r.samples; });
  each("dtrain_optimizer_steps_total", "Batches after which the optimizer stepped", MetricType::Counter,
       [](const RankTotals& r) { return r.optimizer_steps; });
  each("dtrain_step_seconds_total", "Time spent in steps", MetricType::Counter,
       [](const RankTotals& r) { return to_seconds(r.wall_ns); });
  each("dtrain_records_dropped_total", "Records that found the ring full", MetricType::Counter,
       [](const RankTotals& r) { return r.dropped; });
  each("dtrain_lines_lost_total", "Lines of the dump that could not be written", MetricType::Counter,
       [](const RankTotals& r) { return r.lost; });
  // The times are exclusive, so that their sum over phases is dtrain_step_seconds_total.
  out.family("dtrain_phase_seconds_total", "Time spent in a phase, without the phases within it", MetricType::Counter);
  for (const RankTotals& rank : ranks) {
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      out.add({{"rank", std::to_string(rank.rank)}, {"phase", std::string(name_of(static_cast<Phase>(i)))}},
              to_seconds(rank.phases[i]));
    }
  }
  const auto each_collective = [&](const char* name, const char* help, auto value_of) {
    out.family(name, help, MetricType::Counter);
    for (const RankTotals& rank : ranks) {
      for (const auto& [operation, totals] : rank.collectives) {
        out.add({{"rank", std::to_string(rank.rank)}, {"operation", operation}}, static_cast<double>(value_of(totals)));
      }
    }
  };
  each_collective("dtrain_collectives_total", "Collectives", [](const CollectiveTotals& c) { return c.count; });
  each_collective("dtrain_collective_bytes_total", "Their payload", [](const CollectiveTotals& c) { return c.bytes; });
  each_collective("dtrain_collective_seconds_total", "Their duration",
                  [](const CollectiveTotals& c) { return to_seconds(c.duration_ns); });
  each_collective("dtrain_collective_exposed_seconds_total", "What training waited for of it",
                  [](const CollectiveTotals& c) { return to_seconds(c.exposed_ns); });
}

}  // namespace

// The values of answers; threads of the library read them.
class PrometheusEndpoint::Values final : public prometheus::Collectable {
 public:
  explicit Values(std::map<std::string, std::string> labels) : labels_(std::move(labels)) {}

  std::vector<MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    return families_;
  }
  void publish(const SystemSample& sample, const std::vector<RankTotals>& ranks) {
    Families families(labels_);
    add_system(families, sample);
    add_ranks(families, ranks);
    const std::lock_guard lock(mutex_);
    families_ = families.take();
  }

 private:
  const std::map<std::string, std::string> labels_;
  mutable std::mutex mutex_;
  std::vector<MetricFamily> families_;  // guarded by mutex_
};

class PrometheusEndpoint::Server {
 public:
  explicit Server(const std::string& where) : exposer(where, kThreads) {}
  prometheus::Exposer exposer;
};

PrometheusEndpoint::PrometheusEndpoint(const std::string& address, int port,
                                       const std::map<std::string, std::string>& labels)
    : values_(std::make_shared<Values>(labels)) {
  const std::string host = address.find(':') == std::string::npos ? address : "[" + address + "]";
  where_ = host + ":" + std::to_string(port);
  try {
    server_ = std::make_unique<Server>(where_);
  } catch (const std::exception&) {  // its text has no cause
    throw Error("cannot listen on " + where_ + " for Prometheus",
                "give another profiling.prometheus.port (0: any that is free), or end the program that has it; is the "
                "address one of this machine's?");
  }
  server_->exposer.RegisterCollectable(values_);
  if (port == 0) where_ = host + ":" + std::to_string(server_->exposer.GetListeningPorts().at(0));
}

PrometheusEndpoint::~PrometheusEndpoint() = default;

void PrometheusEndpoint::publish(const SystemSample& sample, const std::vector<RankTotals>& ranks) {
  values_->publish(sample, ranks);
}

}  // namespace dtrain::profile
