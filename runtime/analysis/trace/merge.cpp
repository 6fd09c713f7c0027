// Writes one file with all ranks' traces. Each rank is a process, its tracks are threads; times are microseconds on
// rank 0's clock since just before the first trace began.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "dtrain/analysis/export.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/profile/gzip_file.h"
#include "dtrain/profile/trace_file.h"
#include "read/json_fields.h"
#include "trace/trace_reader.h"

namespace dtrain::analysis {
namespace {

constexpr double kLateNoteUs = 5;  // the clock is read a moment before or after the event

// Arrows between the slices of one collective on several ranks: from the rank that came last to each that waited.
class Arrows {
 public:
  void add(std::int64_t pid, const profile::PlacedCollective& collective) {
    auto& slices = collectives_[{collective.batch, collective.sequence, collective.operation}];
    if (!slices.empty()) ++count_;
    slices.push_back({pid, collective.track, collective.came_us, collective.start_us, collective.end_us});
    ++slices_;
  }
  // Returns the arrows as events of Chrome trace JSON, each followed by a comma and a newline.
  std::string events() const {
    fmt::memory_buffer out;
    std::int64_t id = 0;
    for (const auto& [key, slices] : collectives_) {
      const auto last = std::ranges::max_element(slices, {}, &Slice::start_us);
      for (auto other = slices.begin(); other != slices.end(); ++other) {
        if (other == last) continue;
        // An arrow's ends belong to the slices in which they are.
        const double arrives = std::clamp(last->start_us, other->start_us, other->end_us);
        const auto put = [&](const char* phase, const Slice& slice, double at_us) {
          fmt::format_to(
              std::back_inserter(out),
              R"({{"ph":"{}","bp":"e","cat":"waited_for","name":"last rank","id":{},"pid":{},"tid":{},"ts":{:.3f}}})"
              ",\n",
              phase, id, slice.pid, slice.track, at_us);
        };
        ++id;
        put("s", *last, last->start_us);
        put("f", *other, arrives);
      }
    }
    return {out.data(), out.size()};
  }
  std::int64_t slices() const { return slices_; }
  std::int64_t count() const { return count_; }
  // Returns the number of collectives that ended on one rank more than `error_us` before another rank entered them: the
  // clocks must be wrong. (A rank may start after another has ended: a small payload is handed over on entering.)
  std::int64_t impossible(double error_us) const {
    std::int64_t count = 0;
    for (const auto& [key, slices] : collectives_) {
      double last_came = slices.front().came_us, first_end = slices.front().end_us;
      for (const Slice& slice : slices) {
        last_came = std::max(last_came, slice.came_us);
        first_end = std::min(first_end, slice.end_us);
      }
      if (first_end + error_us + kLateNoteUs < last_came) ++count;
    }
    return count;
  }

 private:
  struct Slice {
    std::int64_t pid, track;
    double came_us, start_us, end_us;
  };
  using Key = std::tuple<std::int64_t, std::uint64_t, std::string>;  // batch, sequence, operation

  std::map<Key, std::vector<Slice>> collectives_;
  std::int64_t slices_ = 0;
  std::int64_t count_ = 0;
};

// Returns the steps and collectives of a rank's dump as a trace, for runs without traces. A dump does not record the
// moments of phases within a step.

profile::TraceLog log_of_dump(const RankProfile& rank) {
  profile::TraceLog log;
  for (const StepLine& step : rank.steps) log.on_step(step.batch, step.start_ns, step.start_ns + step.wall_ns);
  for (const CollectiveLine& line : rank.collectives) {
    profile::CollectiveRecord record;
    const auto copy = [](profile::Key, auto& to, const auto& from) {
      if constexpr (std::is_array_v<std::remove_reference_t<decltype(to)>>) {
        name_of(from).copy(to, sizeof to - 1);
      } else {
        to = static_cast<std::remove_reference_t<decltype(to)>>(from);
      }
    };
    profile::CollectiveRecord::fields(copy, record, line);
    log.on_collective(line.batch, record);
  }
  return log;
}

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
  void merge_files(const std::vector<std::filesystem::path>& files) {
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
  void merge_dumps() {
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
  void begin() { write("{\n\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[\n"); }
  void name_rank(int rank, const std::string& host) {
    if (!named_.insert(rank).second) return;
    merged_.ranks.push_back(rank);
    const RankProfile* known = profile_.find_rank(rank);
    const std::string name =
        "rank " + std::to_string(rank) + " on " + (known && !known->host.empty() ? known->host : host);
    const std::int64_t pid = process_of(rank);
    write(to_line({{"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"args", {{"name", name}}}}) + ",\n");
    write(to_line({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", pid}, {"args", {{"sort_index", rank}}}}) +
          ",\n");
  }
  void event(const TraceHead& head, const RawEvent& raw) {
    const auto process = to_number<std::int64_t>(raw.pid);
    if (!process || raw.tid.empty()) return;  // "Spans" and the like
    const std::string_view phase = unquoted(raw.ph);
    const std::string_view name = unquoted(raw.name);
    const bool of_process = *process == head.pid;
    std::int64_t pid = process_of(head.rank);
    if (phase == "M" && !(of_process && (name == "thread_name" || name == "thread_sort_index"))) return;
    if (!of_process) {
      pid = kDevices + head.rank * kDevicesOfRank + std::clamp<std::int64_t>(*process, 0, 999);
      if (named_devices_.insert(pid).second) {
        const std::string title = fmt::format("rank {}, GPU {}", head.rank, *process);
        write(to_line({{"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"args", {{"name", title}}}}) + ",\n");
      }
    }
    const std::string_view category = unquoted(raw.category);
    const bool ours = category == "step" || category == "phase" || category == "scope" || category == "collective";
    if (phase != "M" && !ours && written_ > options_.most_bytes) {
      ++left_out_;
      return;
    }
    const double ts = raw.ts.empty() ? 0 : to_us(head.rank, head.monotonic_ns(raw.ts_us()));
    if (category == "collective") place(head.rank, raw, ts);
    // Each rank numbers its own arrows.
    const auto arrow = to_number<std::int64_t>(raw.id);
    const std::int64_t id = arrow ? (std::int64_t{head.rank} + 1) * 1'000'000'000 + *arrow % 1'000'000'000 : 0;
    line_.clear();
    append_event(line_, raw, pid, ts, id);
    write({line_.data(), line_.size()});
  }
  void place(int rank, const RawEvent& raw, double ts_us) {
    const Json args = parse_if_valid(raw.args).value_or(Json());
    const auto track = to_number<std::int64_t>(raw.tid);
    if (!args.is_object() || !track) return;
    profile::PlacedCollective placed;
    placed.track = *track;
    placed.batch = integer(args, "batch");
    placed.sequence = static_cast<std::uint64_t>(integer(args, "sequence"));
    placed.operation = text(args, "operation");
    placed.came_us = ts_us - number(args, "queued_us");
    placed.start_us = ts_us;
    placed.end_us = ts_us + raw.dur_us();
    arrows_.add(process_of(rank), placed);
  }
  MergedTrace finish() {
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
    // No comma follows the last event.
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
