#include "dtrain/profile/trace_events.h"

#include <algorithm>
#include <cstring>

#include <spdlog/fmt/fmt.h>

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
  std::sort(collectives.begin(), collectives.end(),
            [](const auto& a, const auto& b) { return a.second.started_ns < b.second.started_ns; });
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

}  // namespace dtrain::profile
