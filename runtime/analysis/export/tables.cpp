// The tables of the ranks' records, with times on rank 0's clock.
#include <algorithm>
#include <optional>
#include <utility>

#include "dtrain/analysis/export.h"
#include "dtrain/analysis/operators.h"
#include "export/table_rows.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

void TableRow::operator()(Key, const profile::PhaseTimes& phases) {
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

const std::vector<Cell>& TableRow::finish() {
  if (const auto usage = std::exchange(usage_, std::nullopt)) {
    const auto add = [&](Key key, std::int64_t value) {
      (*this)(key, usage->batches > 0 ? std::optional(value) : std::nullopt);
    };
    LoaderUsage::fields(add, *usage);
  }
  return cells_;
}

namespace {

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
        row("samples", rank.sample_count());
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
    row("samples", window.samples);
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
  std::vector<Table> tables{ranks(),
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
                            operators()};
  for (auto more : {host_tables(), log_tables()}) {
    tables.insert(tables.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return tables;
}

}  // namespace dtrain::analysis
