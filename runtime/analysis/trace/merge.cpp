// One file of all ranks' traces. Each rank is a process, its tracks are threads; times are microseconds on rank 0's
// clock since just before the first trace began.
#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/trace.h"
#include "dtrain/base/error.h"
#include "dtrain/base/units.h"
#include "dtrain/profile/gzip_file.h"
#include "read/json_fields.h"
#include "trace/arrows.h"
#include "trace/dump_trace.h"
#include "trace/trace_reader.h"

namespace dtrain::analysis {
namespace {

constexpr double kLeadUs = 1'000;  // before the first event, so that no time is negative
// Linux numbers processes with 22 bits: these numbers are free.
constexpr std::int64_t kDevices = 10'000'000;
constexpr std::int64_t kDevicesOfRank = 1'000;

std::int64_t process_of(int rank) {
  return rank + 1;  // 0 is the kernel's
}

class Merger {
 public:
  Merger(const RunProfile& profile, const std::filesystem::path& path, const MergeOptions& options)
      : profile_(profile), options_(options), out_(path) {
    merged_.path = path;
  }

  MergedTrace run() {
    const auto files = trace_files(profile_.folder);
    if (files.empty()) {
      merge_dumps();
    } else {
      merge_files(files);
    }
    return finish();
  }

 private:
  void merge_files(const std::vector<std::filesystem::path>& files);
  void merge_dumps();
  void begin();
  void name_rank(int rank, const std::string& host);
  void event(const TraceHead& head, const RawEvent& event);
  void place(int rank, const RawEvent& event, double ts_us);
  MergedTrace finish();
  void write(std::string_view text) {
    out_.write(text);
    written_ += text.size();
  }
  double to_us(int rank, double monotonic_ns) const {
    const auto whole = static_cast<std::int64_t>(monotonic_ns);
    const std::int64_t since = profile_.to_common_ns(rank, whole) - origin_ns_;
    return (static_cast<double>(since) + (monotonic_ns - static_cast<double>(whole))) / 1e3 + kLeadUs;
  }

  const RunProfile& profile_;
  const MergeOptions& options_;
  profile::GzipWriter out_;
  MergedTrace merged_;
  Arrows arrows_;
  std::int64_t origin_ns_ = std::numeric_limits<std::int64_t>::max();
  std::uintmax_t written_ = 0;
  std::set<int> named_;
  std::set<std::int64_t> named_devices_;
  std::int64_t trace_error_ns_ = 0;
  std::int64_t left_out_ = 0;  // operators
  fmt::memory_buffer line_;
};

void Merger::begin() {
  write("{\n\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[\n");
}

void Merger::name_rank(int rank, const std::string& host) {
  if (!named_.insert(rank).second) return;
  merged_.ranks.push_back(rank);
  const RankProfile* known = profile_.find_rank(rank);
  const std::string name =
      "rank " + std::to_string(rank) + " on " + (known && !known->host.empty() ? known->host : host);
  const std::int64_t pid = process_of(rank);
  write(to_line({{"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"args", {{"name", name}}}}) + ",\n");
  write(to_line({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", pid}, {"args", {{"sort_index", rank}}}}) + ",\n");
}

void Merger::merge_files(const std::vector<std::filesystem::path>& files) {
  std::vector<std::filesystem::path> good;
  for (const auto& path : files) {
    try {
      const TraceHead head = read_trace_head(path);
      const double began = head.monotonic_ns(static_cast<double>(head.clock.front().trace_ns - head.base_ns) / 1e3);
      origin_ns_ = std::min(origin_ns_, profile_.to_common_ns(head.rank, static_cast<std::int64_t>(began)));
      if (!head.cut.empty()) {
        merged_.notes.push_back(path.filename().string() + " ends after batch " + std::to_string(head.last_batch) +
                                ": " + head.cut);
      }
      if (!head.missing.empty()) merged_.notes.push_back(path.filename().string() + " lacks " + head.missing);
      trace_error_ns_ = std::max(trace_error_ns_, head.error_ns());
      good.push_back(path);
    } catch (const Error& error) {
      merged_.notes.emplace_back(error.what());
    }
  }
  if (good.empty()) throw DataError("no trace of this run can be read: " + merged_.notes.front());
  begin();
  for (const auto& path : good) {
    TraceReader reader(path);
    name_rank(reader.head().rank, reader.head().host);
    reader.each([&](const RawEvent& raw) { event(reader.head(), raw); });
  }
}

void Merger::event(const TraceHead& head, const RawEvent& raw) {
  std::int64_t pid = 0;
  if (!to_integer(raw.pid, pid) || raw.tid.empty()) return;  // "Spans" and the like
  const std::string_view phase = unquoted(raw.ph);
  const std::string_view name = unquoted(raw.name);
  const bool of_process = pid == head.pid;
  if (phase == "M" && !(of_process && (name == "thread_name" || name == "thread_sort_index"))) return;
  if (!of_process) {
    const std::int64_t device = kDevices + head.rank * kDevicesOfRank + std::clamp<std::int64_t>(pid, 0, 999);
    if (named_devices_.insert(device).second) {
      const std::string title = fmt::format("rank {}, GPU {}", head.rank, pid);
      write(to_line({{"ph", "M"}, {"name", "process_name"}, {"pid", device}, {"args", {{"name", title}}}}) + ",\n");
    }
    pid = device;
  } else {
    pid = process_of(head.rank);
  }
  const std::string_view category = unquoted(raw.category);
  const bool ours = category == "step" || category == "phase" || category == "collective";
  if (phase != "M" && !ours && written_ > options_.most_bytes) {
    ++left_out_;
    return;
  }
  const double ts = raw.ts.empty() ? 0 : to_us(head.rank, head.monotonic_ns(raw.ts_us()));
  if (category == "collective") place(head.rank, raw, ts);
  // Numbers of arrows are each rank's own.
  std::int64_t id = 0;
  if (to_integer(raw.id, id)) id = (std::int64_t{head.rank} + 1) * 1'000'000'000 + id % 1'000'000'000;
  line_.clear();
  append_event(line_, raw, pid, ts, id);
  write({line_.data(), line_.size()});
}

void Merger::place(int rank, const RawEvent& raw, double ts_us) {
  const Json args = Json::parse(raw.args, nullptr, false);
  profile::PlacedCollective placed;
  if (!args.is_object() || !to_integer(raw.tid, placed.track)) return;
  placed.batch = integer(args, "batch");
  placed.sequence = static_cast<std::uint64_t>(integer(args, "sequence"));
  placed.operation = text(args, "operation");
  placed.came_us = ts_us - number(args, "queued_us");
  placed.start_us = ts_us;
  placed.end_us = ts_us + raw.dur_us();
  arrows_.add(process_of(rank), placed);
}

void Merger::merge_dumps() {
  merged_.from_dumps = true;
  for (const RankProfile& rank : profile_.ranks) {
    for (const StepLine& step : rank.steps) {
      origin_ns_ = std::min(origin_ns_, profile_.to_common_ns(rank.rank, step.start_ns));
    }
  }
  begin();
  for (const RankProfile& rank : profile_.ranks) {
    if (rank.steps.empty()) continue;
    name_rank(rank.rank, rank.host);
    const profile::TraceLog log = log_of_dump(rank);
    if (log.left_out() > 0) {
      merged_.notes.push_back(
          fmt::format("rank {}: {} later steps and collectives are left out", rank.rank, log.left_out()));
    }
    const auto placed = profile::write_trace_events(
        log, {.pid = process_of(rank.rank),
              .to_us = [&](std::int64_t time_ns) { return to_us(rank.rank, static_cast<double>(time_ns)); },
              .write = [&](std::string_view text) { write(text); }});
    for (const auto& collective : placed) arrows_.add(process_of(rank.rank), collective);
  }
  if (merged_.ranks.empty()) {
    throw DataError("the run has neither a trace nor a step on record",
                    "ask for one: profiling.trace in the experiment, or `dtrain trace RUN --now` while it runs");
  }
}

MergedTrace Merger::finish() {
  write(arrows_.events());
  merged_.collectives = arrows_.slices();
  merged_.arrows = arrows_.count();
  const auto clock_error = profile_.clock_error_ns();
  merged_.error_known = clock_error.has_value();
  merged_.error_ns = clock_error.value_or(0) + 2 * trace_error_ns_;
  if (!merged_.error_known) {
    merged_.notes.emplace_back("the clocks of the hosts were not compared: ranks of different hosts may be shifted");
  }
  if (left_out_ > 0) {
    merged_.notes.push_back(fmt::format("{} operators are left out: the file would have more than {}", left_out_,
                                        format_bytes(static_cast<double>(options_.most_bytes))));
  }
  if (const auto odd = arrows_.impossible(static_cast<double>(merged_.error_ns) / 1e3);
      odd > 0 && merged_.error_known) {
    merged_.notes.push_back(
        fmt::format("{} collectives end on one rank before another has come to them: their clocks are "
                    "further apart than measured",
                    odd));
  }
  std::sort(merged_.ranks.begin(), merged_.ranks.end());
  // No comma behind the last event.
  write(to_line({{"ph", "i"},
                 {"s", "g"},
                 {"name", "trace begins"},
                 {"pid", process_of(merged_.ranks.front())},
                 {"tid", 0},
                 {"ts", 0}}) +
        "\n],\n\"dtrain\":" + to_line(to_json(merged_)) + "\n}\n");
  merged_.bytes = out_.finish();
  return std::move(merged_);
}

}  // namespace

MergedTrace merge_traces(const RunProfile& profile, const std::filesystem::path& path, const MergeOptions& options) {
  return Merger(profile, path, options).run();
}

Json to_json(const MergedTrace& merged) {
  return {{"path", merged.path.string()},
          {"bytes", merged.bytes},
          {"ranks", merged.ranks},
          {"from_dumps", merged.from_dumps},
          {"collectives", merged.collectives},
          {"arrows", merged.arrows},
          {"clock_error_ns", merged.error_known ? Json(merged.error_ns) : Json()},
          {"notes", merged.notes}};
}

}  // namespace dtrain::analysis
