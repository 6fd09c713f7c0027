#include "dtrain/profile/trace_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/profile/gzip_file.h"

namespace dtrain::profile {
namespace {

// Numbers of the tracks; Linux gives no thread a number of more than 22 bits.
constexpr std::int64_t kStepTrack = 5'000'000;
constexpr std::int64_t kPhaseTrack = kStepTrack + 1;
constexpr std::int64_t kScopeTrack = kStepTrack + 2;
constexpr std::int64_t kCollectiveTrack = kStepTrack + 3;
constexpr std::size_t kMostCollectiveTracks = 64;
constexpr std::size_t kEventPieceBytes = 1 << 20;

class Events {
 public:
  explicit Events(const TraceEventSink& sink) : sink_(sink) {}

  void track(std::int64_t track, const std::string& name) {
    put(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", sink_.pid, track, name);
    put(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", sink_.pid, track,
        track - kStepTrack - 100);
  }
  // `arguments`: the inside of a JSON object.
  void slice(std::int64_t track, const char* category, std::string_view name, std::int64_t start_ns,
             std::int64_t end_ns, const std::string& arguments) {
    put(R"({{"ph":"X","cat":"{}","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})", category,
        name, sink_.pid, track, sink_.to_us(start_ns), static_cast<double>(end_ns - start_ns) / 1e3, arguments);
  }
  void flush() {
    sink_.write({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    buffer_.push_back(',');
    buffer_.push_back('\n');
    if (buffer_.size() > kEventPieceBytes) flush();
  }

  const TraceEventSink& sink_;
  fmt::memory_buffer buffer_;
};

std::string arguments_of(std::int64_t batch, const CollectiveRecord& c, const std::string& operation) {
  return fmt::format(R"("batch":{},"sequence":{},"operation":"{}","bucket":{},"bytes":{},"ranks":{},)"
                     R"("bus_bandwidth_bytes_per_s":{:.0f},"queued_us":{:.3f},"exposed_us":{:.3f})",
                     batch, c.sequence, operation, c.bucket, c.bytes, c.world_size, bus_bandwidth(c),
                     static_cast<double>(c.started_ns - c.enqueued_ns) / 1e3, static_cast<double>(c.exposed_ns) / 1e3);
}

std::vector<PlacedCollective> write_collectives(const TraceLog& log, const TraceEventSink& sink, Events& events) {
  auto collectives = log.collectives();
  std::ranges::sort(collectives, {}, [](const auto& collective) { return collective.second.started_ns; });
  std::vector<PlacedCollective> placed;
  // Collectives that run at the same time are on separate tracks: slices of one track must not overlap.
  std::vector<std::int64_t> busy_until;
  for (const auto& [batch, c] : collectives) {
    std::size_t lane = 0;
    while (lane < busy_until.size() && busy_until[lane] > c.started_ns) ++lane;
    lane = std::min(lane, kMostCollectiveTracks - 1);
    const std::int64_t track = kCollectiveTrack + static_cast<std::int64_t>(lane);
    if (lane >= busy_until.size()) {
      busy_until.push_back(0);
      events.track(track, "collectives" + (lane == 0 ? std::string() : " " + std::to_string(lane + 1)));
    }
    const std::int64_t ended_ns = std::max(c.ended_ns, c.started_ns);
    busy_until[lane] = std::max(busy_until[lane], ended_ns);
    const std::string operation(c.operation, ::strnlen(c.operation, sizeof c.operation));
    const std::string name = c.bucket < 0 ? operation : operation + " bucket " + std::to_string(c.bucket);
    events.slice(track, "collective", name, c.started_ns, ended_ns, arguments_of(batch, c, operation));
    placed.push_back({batch, c.sequence, operation, track, sink.to_us(c.enqueued_ns), sink.to_us(c.started_ns),
                      sink.to_us(ended_ns)});
  }
  return placed;
}

constexpr std::size_t kTracePieceBytes = 1 << 20;

// Converts the host's monotonic clock to the file's times. Between two points their difference grows evenly: the
// profiler's clock follows the wall clock.
class TraceTime {
 public:
  TraceTime(const std::vector<TraceClockPoint>& clock, std::int64_t base_ns)
      : start_ns_(clock.front().monotonic_ns), start_us_(static_cast<double>(clock.front().trace_ns - base_ns) / 1e3) {
    const TraceClockPoint& a = clock.front();
    const TraceClockPoint& b = clock.back();
    if (b.monotonic_ns > a.monotonic_ns) {
      slope_ = static_cast<double>(b.trace_ns - a.trace_ns) / static_cast<double>(b.monotonic_ns - a.monotonic_ns);
    }
  }
  double operator()(std::int64_t monotonic_ns) const {
    return start_us_ + static_cast<double>(monotonic_ns - start_ns_) * slope_ / 1e3;
  }

 private:
  std::int64_t start_ns_;
  double start_us_;
  double slope_ = 1;
};

// Returns the beginning of the file, which replaces its opening brace.
std::string head(const TraceFacts& facts, const TraceLog& log) {
  Json clock = Json::array();
  for (const TraceClockPoint& point : facts.clock) {
    clock.push_back({{"trace_ns", point.trace_ns}, {"monotonic_ns", point.monotonic_ns}, {"error_ns", point.error_ns}});
  }
  Json ours = {{"schema", kTraceSchema},
               {"rank", facts.rank},
               {"world_size", facts.world_size},
               {"host", facts.host},
               {"pid", facts.pid},
               {"reason", facts.reason},
               {"first_batch", facts.window.first_batch},
               {"last_batch", facts.last_batch},
               {"asked_last_batch", facts.window.last_batch},
               {"cut", facts.cut.empty() ? Json() : Json(facts.cut)},
               {"missing", facts.missing.empty() ? Json() : Json(facts.missing)},
               {"operators", facts.operators},
               {"left_out", log.left_out()},
               {"clock", clock}};
  // HolisticTraceAnalysis takes the rank from the second line, and needs a space before the number.
  return "{\n\"dtrain\":" + to_line(ours) + ",\n" +
         fmt::format(R"("distributedInfo": {{"backend": "dtrain", "rank": {}, "world_size": {}}},)", facts.rank,
                     facts.world_size) +
         "\n";
}

// Returns the beginning of the profiler's file, up to and with the bracket that opens the list of events.
std::string read_beginning(std::ifstream& raw, const std::filesystem::path& path) {
  constexpr std::string_view kList = "\"traceEvents\"";
  constexpr std::size_t kLongest = 4 << 20;
  std::string text;
  char c = 0;
  while (text.size() < kLongest && raw.get(c)) {
    text += c;
    if (c != '[') continue;
    const auto at = text.rfind(kList);
    if (at != std::string::npos && text.find_first_not_of(": \n", at + kList.size()) == text.size() - 1) return text;
  }
  throw DataError("libtorch's profiler left " + path.string() + " without a list of events", "is the disk full?");
}

std::int64_t base_time_ns(const std::string& beginning) {
  constexpr std::string_view kKey = "\"baseTimeNanoseconds\":";
  const auto at = beginning.find(kKey);
  if (at == std::string::npos) return 0;  // older ones count from 1970
  auto digits = std::string_view(beginning).substr(beginning.find_first_not_of(' ', at + kKey.size()));
  return take_number<std::int64_t>(digits).value_or(0);
}

// Escapes texts that are not valid in JSON: the profiler writes some texts as they are (those of RECORD_USER_SCOPE, of
// threads and of its file), and a quotation mark in such a text would make the whole file invalid. The text of a line
// ends at the last of the marks that can follow it.
void mend_text(std::string& line) {
  for (const std::string_view key : {"\"name\": \"", "\"traceName\": \""}) {
    const auto found = line.find(key);
    if (found == std::string::npos) continue;
    const auto begin = found + key.size();
    for (const std::string_view after : {"\", \"pid\": ", "\", \"ph\": ", "\""}) {
      const auto end = line.rfind(after);
      if (end == std::string::npos || end < begin) continue;
      const std::string text = line.substr(begin, end - begin);
      if (Json::accept('"' + text + '"')) return;
      const std::string escaped = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
      line.replace(begin - 1, text.size() + 2, escaped);
      return;
    }
  }
}

}  // namespace

std::vector<PlacedCollective> write_trace_events(const TraceLog& log, const TraceEventSink& sink) {
  Events events(sink);
  events.track(kStepTrack, "steps");
  for (const auto& step : log.steps()) {
    events.slice(kStepTrack, "step", "step " + std::to_string(step.batch), step.start_ns, step.end_ns,
                 fmt::format(R"("batch":{})", step.batch));
  }
  if (!log.phases().empty()) events.track(kPhaseTrack, "phases");
  for (const auto& span : log.phases()) {
    events.slice(kPhaseTrack, "phase", name_of(span.phase), span.start_ns, span.end_ns, "");
  }
  if (!log.scopes().empty()) events.track(kScopeTrack, "scopes");
  for (const auto& span : log.scopes()) {
    const std::string_view path = span.path;
    events.slice(kScopeTrack, "scope", path.substr(path.rfind('/') + 1), span.start_ns, span.end_ns,
                 fmt::format(R"("path":"{}")", path));
  }
  auto placed = write_collectives(log, sink, events);
  events.flush();
  return placed;
}

std::uintmax_t write_trace_file(const std::filesystem::path& raw, const TraceLog& log, const TraceFacts& facts,
                                const std::filesystem::path& path) {
  std::ifstream in(raw, std::ios::binary);
  if (!in) throw DataError("libtorch's profiler wrote no " + raw.string(), "is the disk full?");
  const std::string beginning = read_beginning(in, raw);
  GzipWriter out(path);
  out.write(head(facts, log));
  out.write(std::string_view(beginning).substr(beginning.find('{') + 1));
  write_trace_events(log, {.pid = facts.pid,
                           .to_us = TraceTime(facts.clock, base_time_ns(beginning)),
                           .write = [&out](std::string_view text) { out.write(text); }});
  std::string line, piece;
  char last = 0;
  while (std::getline(in, line)) {
    mend_text(line);
    piece.append(line).push_back('\n');
    if (piece.size() > kTracePieceBytes) {
      out.write(piece);
      piece.clear();
    }
    const auto end = line.find_last_not_of(' ');
    if (end != std::string::npos) last = line[end];
  }
  out.write(piece);
  if (last != '}') throw DataError("libtorch's profiler left " + raw.string() + " unfinished", "is the disk full?");
  return out.finish();
}

std::string trace_file_name(int rank, int number) {
  return number <= 1 ? fmt::format("trace-rank-{:04}.json.gz", rank)
                     : fmt::format("trace-rank-{:04}.{}.json.gz", rank, number);
}

void TraceSchedule::add(const TraceWindow& window) {
  windows_.push_back(window);
}

std::optional<TraceWindow> TraceSchedule::at(std::int64_t batch) const {
  return overlapping({batch, batch});
}

std::optional<TraceWindow> TraceSchedule::overlapping(const TraceWindow& window) const {
  for (const TraceWindow& other : windows_) {
    if (other.first_batch <= window.last_batch && window.first_batch <= other.last_batch) return other;
  }
  return std::nullopt;
}

}  // namespace dtrain::profile
