#include "trace/trace_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/profile/gzip_file.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

namespace od = simdjson::ondemand;

constexpr std::size_t kHeadBytes = 4 << 20;

double decimal_of(std::string_view text) {
  const double value = take_number<double>(text).value_or(0);
  constexpr double kMost = 1e15;  // microseconds, 30 years; what is computed from them fits 64 bits in nanoseconds
  return std::isfinite(value) ? std::clamp(value, -kMost, kMost) : 0;
}

std::string_view without_separator(std::string_view text) {
  const auto end = text.find_last_not_of(" \t\r\n,");
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end + 1);
}

std::string_view raw_of(od::value value) {
  switch (value.type()) {
    case od::json_type::object:
      return std::string_view(value.get_object().value().raw_json());
    case od::json_type::array:
      return std::string_view(value.get_array().value().raw_json());
    default:
      return without_separator(value.raw_json_token());
  }
}

void set(RawEvent& event, std::string_view key, od::value value) {
  constexpr std::pair<std::string_view, std::string_view RawEvent::*> kFields[] = {
      {"ph", &RawEvent::ph},   {"cat", &RawEvent::category}, {"name", &RawEvent::name}, {"pid", &RawEvent::pid},
      {"tid", &RawEvent::tid}, {"ts", &RawEvent::ts},        {"dur", &RawEvent::dur},   {"id", &RawEvent::id},
      {"bp", &RawEvent::bp},   {"s", &RawEvent::s},          {"args", &RawEvent::args}};
  for (const auto& [name, field] : kFields) {
    if (key == name) event.*field = raw_of(value);
  }
}

TraceHead to_head(const Json& file, const std::filesystem::path& path) {
  const Json* const found = find_object(file, "dtrain");
  if (!found) throw DataError(path.string() + " is no trace that dtrain wrote");
  const Json& ours = *found;
  if (integer(ours, "schema") > profile::kTraceSchema) {
    throw DataError(path.string() + " was written by a newer dtrain", "read it with that one");
  }
  TraceHead head;
  head.rank = static_cast<int>(std::clamp<std::int64_t>(integer(ours, "rank", -1), -1, kLargestWorld));
  head.world_size = static_cast<int>(std::clamp<std::int64_t>(integer(ours, "world_size", 1), 1, kLargestWorld));
  head.pid = integer(ours, "pid");
  head.host = text(ours, "host");
  head.cut = text(ours, "cut");
  head.missing = text(ours, "missing");
  head.first_batch = integer(ours, "first_batch");
  head.last_batch = integer(ours, "last_batch");
  // Wall clock times in nanoseconds are larger than integer() allows; 73 years are enough.
  const auto time = [](const Json& object, const char* key) {
    return std::clamp<std::int64_t>(value_at<std::int64_t>(object, key).value_or(0), 0, std::int64_t{1} << 61);
  };
  head.base_ns = time(file, "baseTimeNanoseconds");
  for (const Json& point : list_at(ours, "clock")) {
    if (!point.is_object()) continue;
    head.clock.push_back({time(point, "trace_ns"), time(point, "monotonic_ns"), time(point, "error_ns")});
  }
  if (head.rank < 0 || head.clock.empty()) throw DataError(path.string() + " names no rank or no clock");
  return head;
}

TraceHead parse_head(std::string_view text, const std::filesystem::path& path) {
  const auto events = text.find("\"traceEvents\"");
  const auto end = events == std::string_view::npos ? events : text.find_last_of("},]0123456789\"", events - 1);
  if (end == std::string_view::npos || end == 0) throw DataError(path.string() + " has no list of events");
  std::string head(text.substr(0, end + 1));
  while (!head.empty() && (head.back() == ',' || head.back() == '\n' || head.back() == ' ')) head.pop_back();
  const Json file = parse_if_valid(head + "}").value_or(Json());
  if (!file.is_object()) throw DataError(path.string() + " is damaged: it is no JSON");
  return to_head(file, path);
}

}  // namespace

void append_event(fmt::memory_buffer& out, const RawEvent& event, std::int64_t pid, double ts_us, std::int64_t id) {
  const auto to = std::back_inserter(out);
  const auto put = [&](const char* key, std::string_view value) {
    if (!value.empty()) fmt::format_to(to, ",\"{}\":{}", key, value);
  };
  fmt::format_to(to, "{{\"ph\":{},\"pid\":{}", event.ph.empty() ? "\"i\"" : event.ph, pid);
  put("tid", event.tid);
  put("name", event.name);
  put("cat", event.category);
  if (!event.ts.empty()) fmt::format_to(to, ",\"ts\":{:.3f}", ts_us);
  put("dur", event.dur);
  if (!event.id.empty()) fmt::format_to(to, ",\"id\":{}", id);
  put("bp", event.bp);
  put("s", event.s);
  put("args", event.args);
  fmt::format_to(to, "}},\n");
}

double RawEvent::ts_us() const {
  return decimal_of(ts);
}
double RawEvent::dur_us() const {
  return decimal_of(dur);
}

double TraceHead::monotonic_ns(double ts_us) const {
  const profile::TraceClockPoint& a = clock.front();
  const profile::TraceClockPoint& b = clock.back();
  // All differences are small, so a double loses nothing.
  const double since = ts_us * 1e3 - static_cast<double>(a.trace_ns - base_ns);
  double slope = 1;
  if (b.trace_ns > a.trace_ns) {
    // A slope far from 1 between two clocks of one machine is damage.
    slope = std::clamp(
        static_cast<double>(b.monotonic_ns - a.monotonic_ns) / static_cast<double>(b.trace_ns - a.trace_ns), 0.5, 2.0);
  }
  return static_cast<double>(a.monotonic_ns) + since * slope;
}

std::int64_t TraceHead::error_ns() const {
  std::int64_t error = 0;
  for (const auto& point : clock) error = std::max(error, point.error_ns);
  return error;
}

TraceHead read_trace_head(const std::filesystem::path& path) {
  return parse_head(profile::read_gzip_beginning(path, kHeadBytes), path);
}

TraceReader::TraceReader(const std::filesystem::path& path)
    : path_(path), head_(read_trace_head(path)), text_(profile::read_gzip(path)) {
  text_.reserve(text_.size() + simdjson::SIMDJSON_PADDING);
}

void TraceReader::each(const std::function<void(const RawEvent&)>& use) {
  try {
    od::parser parser;
    od::document document = parser.iterate(text_);
    for (auto item : document["traceEvents"].get_array()) {
      RawEvent event;
      for (auto field : item.get_object()) {
        const std::string_view key = field.unescaped_key();
        set(event, key, field.value());
      }
      use(event);
    }
  } catch (const simdjson::simdjson_error& error) {
    throw DataError(path_.string() + " is damaged: the JSON of its events: " + error.what());
  }
}

std::vector<std::filesystem::path> trace_files(const std::filesystem::path& run_folder) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder / "profile", none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("trace-rank-") && name.ends_with(".json.gz")) files.push_back(entry.path());
  }
  // "trace-rank-0000.json.gz" before "trace-rank-0000.2.json.gz", and ".10." after ".2.".
  const auto order = [](const std::filesystem::path& path) {
    const std::string name = path.filename().string().substr(sizeof "trace-rank-" - 1);
    const auto dot = name.find('.');
    const std::string window = name.substr(dot + 1, name.find('.', dot + 1) - dot - 1);
    return std::pair(std::atoll(name.c_str()), window == "json" ? 1 : std::atoll(window.c_str()));
  };
  std::sort(files.begin(), files.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return files;
}

}  // namespace dtrain::analysis
