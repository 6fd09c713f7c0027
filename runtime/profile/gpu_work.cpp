#include "dtrain/profile/gpu_work.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/numeric.h"

namespace dtrain::profile {
namespace {

// The GPU waits longer than this not for the launch itself but for what the host did before it: loading, Python, a
// wait.
constexpr double kLongestLaunchGap_us = 100;

constexpr std::string_view kProductKernels[] = {"gemm",  "gemv",  "conv",  "xmma",  "cutlass", "fmha",
                                                "flash", "wgrad", "dgrad", "nvjet", "cublas",  "winograd"};

double amount(const Json& json, const char* key) {
  const double value = value_at<double>(json, key).value_or(0);
  return std::isfinite(value) ? std::max(0.0, value) : 0;
}

std::int64_t count_at(const Json& json, const char* key) {
  return std::max<std::int64_t>(0, value_at<std::int64_t>(json, key).value_or(0));
}

std::array<double, kWorkKinds> by_kind(const Json& json, const char* key) {
  std::array<double, kWorkKinds> values{};
  const Json& object = object_at(json, key);
  for (std::size_t kind = 0; kind < kWorkKinds; ++kind) {
    values[kind] = amount(object, std::string(name_of(static_cast<WorkKind>(kind))).c_str());
  }
  return values;
}

Json by_kind(const std::array<double, kWorkKinds>& values) {
  Json json = Json::object();
  for (std::size_t kind = 0; kind < kWorkKinds; ++kind)
    json[std::string(name_of(static_cast<WorkKind>(kind)))] = values[kind];
  return json;
}

}  // namespace

std::string_view name_of(WorkKind kind) {
  constexpr std::string_view kNames[] = {"products", "memory_bound", "exchange", "copies"};
  static_assert(std::size(kNames) == kWorkKinds);
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_product_kernel(std::string_view name) {
  return std::ranges::any_of(kProductKernels,
                             [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

WorkKind kind_of_work(std::string_view name) {
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return WorkKind::kCopies;
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (plain.starts_with("nccl")) return WorkKind::kExchange;
  return is_product_kernel(plain) ? WorkKind::kProducts : WorkKind::kMemoryBound;
}

void GpuWindow::add(const GpuWindow& other) {
  add_to(batches, other.batches);
  add_to(works, other.works);
  busy_s += other.busy_s;
  idle_s += other.idle_s;
  add_to(late_launches, other.late_launches);
  launch_gaps_s += other.launch_gaps_s;
  late_launch_s += other.late_launch_s;
  work_before_s += other.work_before_s;
  add_to(graphs, other.graphs);
  for (std::size_t kind = 0; kind < kWorkKinds; ++kind) {
    work_s[kind] += other.work_s[kind];
    own_s[kind] += other.own_s[kind];
  }
}

Json to_json(const GpuWindow& window) {
  return {{"batches", window.batches},
          {"works", window.works},
          {"busy_s", window.busy_s},
          {"idle_s", window.idle_s},
          {"late_launches", window.late_launches},
          {"launch_gaps_s", window.launch_gaps_s},
          {"late_launch_s", window.late_launch_s},
          {"work_before_s", window.work_before_s},
          {"graphs", window.graphs},
          {"work_s", by_kind(window.work_s)},
          {"own_s", by_kind(window.own_s)}};
}

GpuWindow gpu_window_of(const Json& json) {
  return {.batches = count_at(json, "batches"),
          .works = count_at(json, "works"),
          .busy_s = amount(json, "busy_s"),
          .idle_s = amount(json, "idle_s"),
          .late_launches = count_at(json, "late_launches"),
          .launch_gaps_s = amount(json, "launch_gaps_s"),
          .late_launch_s = amount(json, "late_launch_s"),
          .work_before_s = amount(json, "work_before_s"),
          .graphs = count_at(json, "graphs"),
          .work_s = by_kind(json, "work_s"),
          .own_s = by_kind(json, "own_s")};
}

void GpuWindowCounter::add_work(std::string_view name, double start_us, double end_us, std::int64_t correlation) {
  works_.push_back({start_us, end_us, kind_of_work(name), correlation});
}

void GpuWindowCounter::add_call(std::string_view name, double end_us, std::int64_t correlation) {
  if (correlation == 0) return;
  const bool is_graph = name.starts_with("cudaGraphLaunch");
  calls_[correlation] = {.end_us = end_us, .is_graph = is_graph};
}

void GpuWindowCounter::count(std::int64_t batches, GpuWindow& into) {
  if (works_.empty()) return;
  std::ranges::sort(works_, {}, &Work::start_us);
  into.batches += batches;
  into.works += static_cast<std::int64_t>(works_.size());
  count_gaps(into);
  count_kinds(into);
}

bool GpuWindowCounter::lacks_work_of_graphs() const {
  return std::ranges::any_of(calls_, [](const auto& call) { return call.second.is_graph && !call.second.has_work; });
}

// A CUDA graph is one call with many works: only the first of them waits for it.
void GpuWindowCounter::count_gaps(GpuWindow& into) {
  double end_us = works_.front().start_us;  // of all work so far
  std::optional<double> last_call_us;       // the end of the call that launched the work before
  double last_work_us = 0;                  // what that work took
  for (const Work& work : works_) {
    const auto call = calls_.find(work.correlation);
    const bool known = call != calls_.end();
    const bool is_first = known && !call->second.has_work;
    const double gap_us = work.start_us - end_us;
    if (gap_us > 0) into.idle_s += gap_us / 1e6;
    if (gap_us > 0 && gap_us <= kLongestLaunchGap_us && is_first && last_call_us && call->second.end_us > end_us) {
      ++into.late_launches;
      into.launch_gaps_s += gap_us / 1e6;
      into.late_launch_s += std::max(0.0, call->second.end_us - *last_call_us) / 1e6;
      into.work_before_s += last_work_us / 1e6;
    }
    if (is_first && call->second.is_graph) ++into.graphs;
    if (known) call->second.has_work = true;
    into.busy_s += std::max(0.0, work.end_us - std::max(end_us, work.start_us)) / 1e6;
    end_us = std::max(end_us, work.end_us);
    last_call_us = known ? std::optional(call->second.end_us) : std::nullopt;
    last_work_us = work.end_us - work.start_us;
  }
}

void GpuWindowCounter::count_kinds(GpuWindow& into) const {
  struct Edge {
    double at_us;
    std::size_t kind;
    int change;
  };
  std::vector<Edge> edges;
  edges.reserve(2 * works_.size());
  for (const Work& work : works_) {
    const auto kind = static_cast<std::size_t>(work.kind);
    into.work_s[kind] += (work.end_us - work.start_us) / 1e6;
    edges.push_back({work.start_us, kind, 1});
    edges.push_back({work.end_us, kind, -1});
  }
  std::ranges::sort(edges, {}, &Edge::at_us);
  std::array<int, kWorkKinds> running{};
  double since_us = edges.front().at_us;
  for (const Edge& edge : edges) {
    const auto first = std::ranges::find_if(running, [](int works) { return works > 0; });
    if (first != running.end()) {
      into.own_s[static_cast<std::size_t>(first - running.begin())] += (edge.at_us - since_us) / 1e6;
    }
    running[edge.kind] += edge.change;
    since_us = edge.at_us;
  }
}

std::string kernel_times_file_name(int rank) {
  return fmt::format("kernels-rank-{:04}.json", rank);
}

Json to_json(const KernelTimes& times) {
  Json json = {{"schema", kKernelTimesSchema},
               {"rank", times.rank},
               {"host", times.host},
               {"first_batch", times.first_batch},
               {"last_batch", times.last_batch},
               {"cost_s", times.cost_s}};
  json.update(to_json(times.window));
  return json;
}

KernelTimes kernel_times_of(const Json& json) {
  if (const auto schema = value_at<int>(json, "schema").value_or(0); schema != kKernelTimesSchema) {
    throw DataError("its schema is " + std::to_string(schema) + ", and this version reads " +
                    std::to_string(kKernelTimesSchema));
  }
  return {.rank = static_cast<int>(std::min<std::int64_t>(count_at(json, "rank"), std::int64_t{1} << 20)),
          .host = text_at(json, "host"),
          .first_batch = count_at(json, "first_batch"),
          .last_batch = count_at(json, "last_batch"),
          .cost_s = amount(json, "cost_s"),
          .window = gpu_window_of(json)};
}

}  // namespace dtrain::profile
