// A window's line: sums go into the WindowLine, distributions into WindowSketches.
#include <vector>

#include "read/dump_parse.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using profile::Sketch;

// An empty one where the value is no sketch.
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

// A window's "train_batch" holds its parts, in its sum as in its distribution.
void read_phase_sketches(const Element& value, WindowLine& window, WindowSketches& sketches) {
  Object object;
  if (value.get(object) != simdjson::SUCCESS) return;
  for (const auto& [key, field] : object) {
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      if (key != profile::name_of(static_cast<Phase>(i))) continue;
      sketches.phases[i] = to_sketch(field);
      window.phases[i] = sketches.phases[i].sum();
      break;
    }
  }
  std::int64_t& whole = window.phases[static_cast<std::size_t>(Phase::kTrainBatch)];
  for (const Phase part : {Phase::kForward, Phase::kBackward}) {
    whole = minus(whole, window.phases[static_cast<std::size_t>(part)]);
  }
}

void read_collective(const Object& object, WindowLine& window, WindowSketches& sketches) {
  CollectiveWindow line;
  Sketch duration;
  for (const auto& [key, field] : object) {
    if (key == "operation") line.operation = operation_of(to_text(field));
    if (key == "bucket") line.bucket = to_small(field, -1);
    if (key == "world_size") line.world_size = to_small(field, 1);
    if (key == "count") line.count = to_integer(field);
    if (key == "bytes") line.bytes = to_integer(field);
    if (key == "duration_ns") duration = to_sketch(field);
    if (key == "exposed_ns") line.exposed_ns = to_sketch(field).sum();
    if (key == "queued_ns") line.queued_ns = to_sketch(field).sum();
  }
  line.duration_ns = duration.sum();
  sketches.collectives[{line.operation, line.bucket}].merge(duration);
  window.collectives.push_back(line);
}

void read_loader(const Object& object, WindowLine& window, WindowSketches& sketches) {
  for (const auto& [key, field] : object) {
    if (key == "count") window.loader_records = to_integer(field);
    if (key == "workers") window.loader_workers = to_small(field);
    if (key == "pinned" && field.is_bool()) window.loader_pinned = to_bool(field) ? 1 : 0;
    if (key == "queue_depth") {
      const Sketch depth = to_sketch(field);
      window.loader_empty = depth.zeros();
      window.loader_queue_sum = depth.sum();
    }
    if (key == "fetch_ns") {
      sketches.loader_fetch = to_sketch(field);
      window.loader_fetches = sketches.loader_fetch.count();
      window.loader_fetch_ns = sketches.loader_fetch.sum();
    }
  }
}

}  // namespace

WindowLine parse_window(const Object& object, WindowSketches& sketches) {
  WindowLine window;
  for (const auto& [key, field] : object) {
    if (key == "first_batch") window.first_batch = to_integer(field);
    if (key == "last_batch") window.last_batch = to_integer(field);
    if (key == "epoch") window.epoch = to_integer(field);
    if (key == "start_ns") window.start_ns = to_integer(field);
    if (key == "end_ns") window.end_ns = to_integer(field);
    if (key == "steps") window.steps = to_integer(field);
    if (key == "outliers") window.outliers = to_integer(field);
    if (key == "outliers_folded") window.outliers_folded = to_integer(field);
    if (key == "exchanged") window.exchanged = to_integer(field);
    if (key == "samples") window.samples = to_integer(field);
    if (key == "wall_ns") sketches.wall = to_sketch(field);
    if (key == "wall_ns_m2") window.wall_m2 = to_double(field);
    if (key == "phases") read_phase_sketches(field, window, sketches);
    Object loader;
    if (key == "loader" && field.get(loader) == simdjson::SUCCESS) read_loader(loader, window, sketches);
    Array list;
    if (key != "collectives" || field.get(list) != simdjson::SUCCESS) continue;
    for (const Element& item : list) {
      Object collective;
      if (item.get(collective) == simdjson::SUCCESS) read_collective(collective, window, sketches);
    }
  }
  window.wall_ns = sketches.wall.sum();
  window.wall_p50_ns = static_cast<std::int64_t>(sketches.wall.quantile(0.5));
  window.wall_max_ns = sketches.wall.max();
  return window;
}

}  // namespace dtrain::analysis
