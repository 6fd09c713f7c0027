// The tables of a run, with times on rank 0's clock.
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/analysis/export.h"
#include "dtrain/analysis/operators.h"
#include "dtrain/base/json.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using profile::Key;

// Makes rows from functions that visit values with their keys, as the fields() of records do
// (dtrain/profile/records.h): collects the cells of a row and, for the first one of a table, its columns.
class TableRow {
 public:
  // `run` and `rank`: the clock of the row's moments, which are converted to rank 0's clock.
  void begin(const RunProfile& run, std::optional<int> rank) {
    cells_.clear();
    run_ = &run;
    rank_ = rank;
  }
  template <typename T>
  void operator()(Key key, const T& value) {
    if constexpr (std::same_as<T, LoaderUsage>) {
      usage_ = value;
    } else {
      if (columns_) columns_->push_back({std::string(key.name), type_of<T>()});
      cells_.push_back(cell(key.form, value));
    }
  }
  void operator()(Key, const profile::PhaseTimes& phases) {
    using profile::Phase;
    const auto at = [&phases](Phase phase) { return phases[static_cast<std::size_t>(phase)]; };
    for (std::size_t i = 0; i < phases.size(); ++i) {
      const auto phase = static_cast<Phase>(i);
      if (columns_) {
        std::string name(name_of(phase));
        std::replace(name.begin(), name.end(), '.', '_');
        columns_->push_back({name + "_ns", type_of<std::int64_t>()});
      }
      // As in the dumps, train_batch includes forward and backward.
      cells_.emplace_back(phase == Phase::kTrainBatch ? plus(at(phase), plus(at(Phase::kForward), at(Phase::kBackward)))
                                                      : phases[i]);
    }
  }
  // Returns the row; the usage of reading a batch follows the other cells.
  const std::vector<Cell>& finish() {
    if (const auto usage = std::exchange(usage_, std::nullopt)) {
      const auto add = [&](Key key, std::int64_t value) {
        (*this)(key, usage->batches > 0 ? std::optional(value) : std::nullopt);
      };
      LoaderUsage::fields(add, *usage);
    }
    return cells_;
  }

  template <typename Fields, typename... Items>
  static std::vector<Column> columns_of(const Fields& fields, const Items&... items) {
    TableRow row;
    row.columns_.emplace();
    fields(row, items...);
    row.finish();
    return std::move(*row.columns_);
  }

 private:
  template <typename T>
  static constexpr bool kIsOptional = requires(const T& value) {
    value.has_value();
  };
  // Returns SQL's name of a type. A Cell of any type is REAL.
  template <typename T>
  static std::string_view type_of() {
    if constexpr (kIsOptional<T>) {
      return type_of<typename T::value_type>();
    } else {
      return std::integral<T> ? "INTEGER" : std::floating_point<T> || std::same_as<T, Cell> ? "REAL" : "TEXT";
    }
  }
  template <typename T>
  Cell cell(Key::Form form, const T& value) const {
    if constexpr (std::same_as<T, Cell>) {
      return value;
    } else if constexpr (kIsOptional<T>) {
      return value ? cell(form, *value) : Cell();
    } else if constexpr (std::integral<T>) {
      const auto number = static_cast<std::int64_t>(value);
      if (form == Key::kMoment) return rank_ ? run_->to_common_ns(*rank_, number) : number;
      return form != Key::kPlain && number < 0 ? Cell() : Cell(number);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<double>(value);
    } else if constexpr (requires { name_of(value); }) {
      return std::string(name_of(value));
    } else {
      return std::string(value);
    }
  }

  const RunProfile* run_ = nullptr;
  std::optional<int> rank_;
  std::vector<Cell> cells_;
  std::optional<std::vector<Column>> columns_;
  std::optional<LoaderUsage> usage_;
};

// Makes a table whose rows have Items: `each` passes them on, with the rank on whose clock they are, and `fields`
// visits their values.
template <typename... Items>
Table make_table(std::string name, auto each, auto fields) {
  return {std::move(name), TableRow::columns_of(fields, Items{}...), [=](const RunProfile& run, const auto& sink) {
            TableRow row;
            each(run, [&](std::optional<int> rank, const Items&... items) {
              row.begin(run, rank);
              fields(row, items...);
              sink(row.finish());
            });
          }};
}

// Makes a table with rows of monitors: `lines` passes on the items of one monitor. A host's ranks share its clock.
template <typename... Items>
Table of_monitors(std::string name, auto lines, auto fields) {
  const auto each = [lines](const RunProfile& run, const auto& emit) {
    for (const MonitorProfile& monitor : run.monitors) {
      std::optional<int> rank;
      for (const RankProfile& candidate : run.ranks) {
        if (!rank && run.monitor_of(candidate) == &monitor) rank = candidate.rank;
      }
      lines(monitor, [&](const Items&... items) { emit(rank, monitor, items...); });
    }
  };
  const auto with_monitor = [fields](auto& row, auto& monitor, auto&... items) {
    row("agent", monitor.agent);
    fields(row, monitor, items...);
  };
  return make_table<MonitorProfile, Items...>(std::move(name), each, with_monitor);
}

struct SystemValue {
  std::string metric;
  std::optional<std::int64_t> device;
  double value = 0;
};

// The table has a row for each value, because the metrics depend on the machine.
Table system() {
  const auto lines = [](const MonitorProfile& monitor, const auto& emit) {
    for (const SystemLine& line : monitor.samples) {
      for (const auto& [name, value] : line.metrics) emit(line, {name, std::nullopt, value});
      for (std::size_t core = 0; core < line.cpu_util_per_core.size(); ++core) {
        emit(line, {"cpu_util_per_core", static_cast<std::int64_t>(core), line.cpu_util_per_core[core]});
      }
      for (const auto& [index, metrics] : line.gpus) {
        for (const auto& [name, value] : metrics) emit(line, {name, index, value});
      }
    }
  };
  return of_monitors<SystemLine, SystemValue>("system", lines, [](auto& row, auto& monitor, auto& line, auto& value) {
    row("host", monitor.host);
    row({"time_ns", Key::kMoment}, line.time_ns);
    row("interval_ns", line.interval_ns);
    row("metric", value.metric);
    row("device", value.device);
    row("value", value.value);
  });
}

Table processes() {
  const auto lines = [](const MonitorProfile& monitor, const auto& emit) {
    for (const SystemLine& line : monitor.samples) {
      for (const ProcessLine& process : line.processes) emit(line, process);
    }
  };
  return of_monitors<SystemLine, ProcessLine>("processes", lines, [](auto& row, auto&, auto& line, auto& process) {
    row({"time_ns", Key::kMoment}, line.time_ns);
    row("rank", process.rank);
    row("resident_bytes", process.resident_bytes);
    row("cpu_percent", process.cpu_percent);
    row("cpu_wait_percent", process.cpu_wait_percent);
  });
}

Table gpus() {
  const auto lines = [](const MonitorProfile& monitor, const auto& emit) {
    for (const GpuLine& gpu : monitor.gpus) emit(gpu);
  };
  return of_monitors<GpuLine>("gpus", lines, [](auto& row, auto&, auto& gpu) {
    const std::int64_t bytes = gpu.total_memory_bytes;
    row("gpu", gpu.index);
    row("uuid", gpu.uuid);
    row("name", gpu.name);
    row("total_memory_bytes", bytes > 0 ? std::optional(bytes) : std::nullopt);
  });
}

Table metrics() {
  const auto each = [](const RunProfile& run, const auto& emit) {
    for (const Json& line : run.metrics) {
      for (const auto& [name, value] : object_at(line, "metrics").items()) {
        if (const auto number = number_of(value)) emit(std::nullopt, line, name, *number);
      }
    }
  };
  return make_table<Json, std::string, double>("metrics", each, [](auto& row, auto& line, auto& name, double value) {
    row("time", text(line, "time"));
    row("kind", text(line, "kind"));
    row("batch", integer(line, "batch"));
    row("epoch", integer(line, "epoch"));
    row("samples", integer(line, "samples"));
    row("name", name);
    row("value", std::isfinite(value) ? Cell(value) : Cell(non_finite_text(value)));
  });
}

Table events() {
  const auto each = [](const RunProfile& run, const auto& emit) {
    for (const Json& line : run.events) emit(std::nullopt, line);
  };
  return make_table<Json>("events", each, [](auto& row, const Json& line) {
    Json rest = Json::object();
    for (const auto& [key, value] : line.items()) {
      if (key != "time" && key != "event" && key != "rank" && key != "pid" && key != "host") rest[key] = value;
    }
    row("time", text(line, "time"));
    row("event", text(line, "event"));
    row("rank", line.contains("rank") ? std::optional(integer(line, "rank")) : std::nullopt);
    row("pid", integer(line, "pid"));
    row("host", text(line, "host"));
    row("fields", to_line(rest));
  });
}

// Makes a table with rows of ranks: `lines` passes on the items of one rank.
template <typename... Items>
Table of_ranks(std::string name, auto lines, auto fields) {
  const auto each = [lines](const RunProfile& run, const auto& emit) {
    for (const RankProfile& rank : run.ranks) {
      lines(rank, [&](const Items&... items) { emit(rank.rank, rank, items...); });
    }
  };
  const auto with_rank = [fields](auto& row, auto& rank, auto&... items) {
    row("rank", rank.rank);
    fields(row, rank, items...);
  };
  return make_table<RankProfile, Items...>(std::move(name), each, with_rank);
}

// Makes a table with one row for each line of a list.
template <typename Line>
Table of_lines(std::string name, std::vector<Line> RankProfile::*list, auto fields) {
  const auto lines = [list](const RankProfile& rank, const auto& emit) {
    for (const Line& line : rank.*list) emit(line);
  };
  return of_ranks<Line>(std::move(name), lines, [fields](auto& row, auto&, auto& line) { fields(row, line); });
}

constexpr auto kFields = [](auto& row, const auto& line) { line.fields(row, line); };

Table ranks() {
  return of_ranks<>(
      "ranks", [](const RankProfile&, const auto& emit) { emit(); },
      [](auto& row, auto& rank) {
        const std::int64_t start = integer(rank.header, "start_ns", -1);
        row("host", rank.host);
        row("agent", rank.agent);
        row({"pid", Key::kIfKnown}, integer(rank.header, "pid", -1));
        row({"start_ns", Key::kMoment}, start < 0 ? std::nullopt : std::optional(start));
        row("steps", rank.step_count());
        const profile::StepCounts counts = rank.counts();
        counts.fields(row, counts);
        row("initialization_s", rank.part_s("initialization"));
        row("loop_s", rank.loop_s());
        row("finalization_s", rank.part_s("finalization"));
        row("ended", rank.end ? std::optional(rank.end->how) : std::nullopt);
        row("dropped", rank.dropped);
        row("lost", rank.lost);
      });
}

Table windows() {
  return of_lines("windows", &RankProfile::windows, [](auto& row, const WindowLine& window) {
    row("first_batch", window.first_batch);
    row("last_batch", window.last_batch);
    row("epoch", window.epoch);
    row({"start_ns", Key::kMoment}, window.start_ns);
    row({"end_ns", Key::kMoment}, window.end_ns);
    row("steps", window.steps);
    row("exchanged", window.exchanged);
    profile::StepCounts::fields(row, window);
    row("outliers", window.outliers);
    row("wall_ns", window.wall_ns);
    row("wall_p50_ns", window.wall_p50_ns);
    row("wall_max_ns", window.wall_max_ns);
    row("phases", window.phases);
  });
}

Table collective_windows() {
  const auto lines = [](const RankProfile& rank, const auto& emit) {
    for (const WindowLine& window : rank.windows) {
      for (const CollectiveWindow& sums : window.collectives) emit(window, sums);
    }
  };
  return of_ranks<WindowLine, CollectiveWindow>("collective_windows", lines,
                                                [](auto& row, auto&, auto& window, auto& sums) {
                                                  row("first_batch", window.first_batch);
                                                  row("last_batch", window.last_batch);
                                                  row("operation", sums.operation);
                                                  row({"bucket", Key::kOrNone}, sums.bucket);
                                                  row("world_size", sums.world_size);
                                                  row("count", sums.count);
                                                  row("bytes", sums.bytes);
                                                  row("duration_ns", sums.duration_ns);
                                                  row("exposed_ns", sums.exposed_ns);
                                                  row("queued_ns", sums.queued_ns);
                                                });
}

Table scopes() {
  const auto lines = [](const RankProfile& rank, const auto& emit) {
    for (const ScopeStep& step : rank.scope_steps) emit(step, rank.scope_paths[static_cast<std::size_t>(step.path)]);
  };
  return of_ranks<ScopeStep, std::string>("scopes", lines, [](auto& row, auto&, auto& step, auto& path) {
    row("batch", step.batch);
    row("scope", path);
    row("calls", step.calls);
    row("wall_ns", step.wall_ns);
    row("phase", step.phase);
  });
}

// The table covers all steps, also those in windows.
Table scope_totals() {
  const auto lines = [](const RankProfile& rank, const auto& emit) {
    for (const auto& [path, totals] : rank.scopes) emit(path, totals);
  };
  return of_ranks<std::string, ScopeTotals>("scope_totals", lines, [](auto& row, auto&, auto& path, auto& totals) {
    row("scope", path);
    row("steps", totals.steps);
    row("calls", totals.calls);
    row("wall_ns", totals.wall_ns);
    row("phases", totals.phases);
  });
}

Table memory() {
  return of_lines("memory", &RankProfile::memory, [](auto& row, const MemoryLine& line) {
    row({"time_ns", Key::kMoment}, line.time_ns);
    row("batch", line.batch);
    row("resident_bytes", line.resident_bytes);
    row("peak_bytes", line.peak_bytes);
    row("anonymous_bytes", line.anonymous_bytes);
    row({"free_heap_bytes", Key::kIfKnown}, line.free_heap_bytes);
  });
}

Table parts() {
  return of_lines("parts", &RankProfile::parts, [](auto& row, const PartLine& line) {
    row("part", line.part);
    row({"start_ns", Key::kMoment}, line.start_ns);
    row({"end_ns", Key::kMoment}, line.end_ns);
  });
}

Table clocks() {
  return of_lines("clocks", &RankProfile::clocks, [](auto& row, const ClockLine& line) {
    row("time_ns", line.time_ns);
    row("offset_ns", line.offset_ns);
    row("error_ns", line.error_ns);
  });
}

Table operators() {
  const auto each = [](const RunProfile& run, const auto& emit) {
    const Operators all = operators_of_run(run.folder);
    for (const OperatorRow& row : all.cpu.rows) emit(std::nullopt, "cpu", row);
    for (const OperatorRow& row : all.gpu.rows) emit(std::nullopt, "gpu", row);
  };
  return make_table<std::string, OperatorRow>("operators", each, [](auto& row, auto& device, auto& line) {
    row("device", device);
    row("name", line.name);
    row("class", line.kind);
    row("calls", line.calls);
    row("self_s", line.self_s);
    row("total_s", line.total_s);
    row("share", line.share);
  });
}

}  // namespace

std::vector<Table> run_tables() {
  return {ranks(),
          of_lines("steps", &RankProfile::steps, kFields),
          windows(),
          of_lines("collectives", &RankProfile::collectives, kFields),
          collective_windows(),
          of_lines("loader", &RankProfile::loader, kFields),
          scopes(),
          scope_totals(),
          memory(),
          parts(),
          clocks(),
          operators(),
          system(),
          processes(),
          gpus(),
          metrics(),
          events()};
}

}  // namespace dtrain::analysis
