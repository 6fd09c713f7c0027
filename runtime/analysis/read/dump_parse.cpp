#include "read/dump_parse.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace dtrain::analysis {

using profile::Phase;
using profile::Sketch;

void read_phases(const Element& value, profile::Key::Form form, profile::PhaseTimes& phases) {
  Object object;
  if (value.get(object) != simdjson::SUCCESS) return;
  std::size_t expected = 0;  // phases usually come in the order of Phase
  for (const auto& [key, time] : object) {
    std::size_t i = expected;
    if (i >= profile::kPhaseCount || key != profile::name_of(static_cast<Phase>(i))) {
      for (i = 0; i < profile::kPhaseCount && key != profile::name_of(static_cast<Phase>(i));) ++i;
    }
    if (i >= profile::kPhaseCount) continue;
    phases[i] = to_integer(time, form == profile::Key::kIfKnown ? -1 : 0);
    expected = i + 1;
  }
  if (form == profile::Key::kIfKnown) return;
  phases[static_cast<std::size_t>(Phase::kTrainBatch)] -=
      phases[static_cast<std::size_t>(Phase::kForward)] + phases[static_cast<std::size_t>(Phase::kBackward)];
}

Sketch to_sketch(const Element& value) {
  Object object;
  if (value.get(object) != simdjson::SUCCESS) return {};
  std::int64_t count = 0, sum = 0, min = 0, max = 0, zeros = 0;
  std::vector<std::int64_t> bins;
  for (const auto& [key, field] : object) {
    if (key == "count") count = to_integer(field);
    if (key == "sum") sum = to_integer(field);
    if (key == "min") min = to_integer(field);
    if (key == "max") max = to_integer(field);
    if (key == "zeros") zeros = to_integer(field);
    Array list;
    if (key != "bins" || field.get(list) != simdjson::SUCCESS) continue;
    bins.reserve(list.size());
    for (const Element& item : list) bins.push_back(to_integer(item));
  }
  return Sketch::restore(count, sum, min, max, zeros, bins).value_or(Sketch());
}

std::string_view text_of(const Object& object, std::string_view key) {
  std::string_view found;
  for (const auto& [name, value] : object) {
    if (name == key) found = to_text(value);
  }
  return found;
}

std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback) {
  std::int64_t found = fallback;
  for (const auto& [name, value] : object) {
    if (name == key) found = to_integer(value, fallback);
  }
  return found;
}

namespace {

// Returns all numbers of an object except those of the keys `without`.
Metrics numbers(const Object& object, std::initializer_list<std::string_view> without) {
  Metrics result;
  for (const auto& [key, value] : object) {
    if (value.is_number() && std::find(without.begin(), without.end(), key) == without.end()) {
      result.emplace_back(key, to_double(value));
    }
  }
  return result;
}

}  // namespace

SystemLine parse_system(const Object& object) {
  SystemLine line;
  line.metrics = numbers(object, {"time_ns", "interval_ns"});
  FieldReader fields(object);
  fields("time_ns", line.time_ns);
  fields("interval_ns", line.interval_ns);
  fields("cpu_util_per_core", line.cpu_util_per_core);
  fields("processes", line.processes);
  Array gpus;
  if (object["gpus"].get(gpus) != simdjson::SUCCESS) return line;
  for (const Element& item : gpus) {
    Object gpu;
    if (item.get(gpu) == simdjson::SUCCESS)
      line.gpus.emplace_back(integer_of(gpu, "index", -1), numbers(gpu, {"index"}));
  }
  return line;
}

GpuLine parse_gpu(const Object& object) {
  GpuLine line{integer_of(object, "index", -1), std::string(text_of(object, "uuid")),
               std::string(text_of(object, "name")), integer_of(object, "total_memory")};
  for (const auto& [key, value] : object) {
    if (key == "slowdown_temperature") line.slowdown_celsius = to_double(value);
    if (key == "compute_capability") line.compute_capability = to_double(value);
  }
  return line;
}

namespace {

CollectiveWindow sums_of(const profile::CollectiveSums& sums) {
  return {operation_of(sums.operation), sums.bucket,           sums.world_size,     sums.count, sums.bytes,
          sums.duration_ns.sum(),       sums.exposed_ns.sum(), sums.queued_ns.sum()};
}

}  // namespace

WindowLine parse_window(const Object& object, WindowSketches& sketches) {
  auto record = parse<profile::WindowRecord>(object);
  WindowLine window{record};
  window.wall_ns = record.wall_ns.sum();
  window.wall_p50_ns = static_cast<std::int64_t>(record.wall_ns.quantile(0.5));
  window.wall_max_ns = record.wall_ns.max();
  window.wall_m2 = record.wall_ns_m2;
  sketches.wall = std::move(record.wall_ns);
  // "train_batch" includes its parts, in its sum and in its distribution.
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) window.phases[i] = record.phases[i].sum();
  std::int64_t& whole = window.phases[static_cast<std::size_t>(Phase::kTrainBatch)];
  for (const Phase part : {Phase::kForward, Phase::kBackward}) {
    whole = minus(whole, window.phases[static_cast<std::size_t>(part)]);
  }
  sketches.phases = std::move(record.phases);
  for (const profile::CollectiveSums& sums : record.collectives) {
    const CollectiveWindow& line = window.collectives.emplace_back(sums_of(sums));
    sketches.collectives[{line.operation, line.bucket}].merge(sums.duration_ns);
  }
  profile::LoaderSums& loader = record.loader;
  window.loader_records = loader.count;
  window.loader_empty = loader.queue_depth.zeros();
  window.loader_queue_sum = loader.queue_depth.sum();
  window.loader_fetches = loader.fetch_ns.count();
  window.loader_fetch_ns = loader.fetch_ns.sum();
  window.loader_workers = loader.workers;
  window.loader_pinned = loader.pinned;
  window.loader_usage = loader.usage;
  sketches.loader_fetch = std::move(loader.fetch_ns);
  for (const profile::ScopeSums& sums : record.scopes) {
    ScopeTotals* const scope = scope_of(sketches.scopes, sums.path);
    if (scope != nullptr)
      scope->merge({sums.wall_ns.count(), sums.calls, sums.wall_ns.sum(), sums.phases, sums.wall_ns});
  }
  return window;
}

}  // namespace dtrain::analysis
