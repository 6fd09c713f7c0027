// The dump is not trusted: if a value is missing, of another type or implausible, the field keeps its default.
#include "dtrain/analysis/dump_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <initializer_list>
#include <type_traits>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "read/json_fields.h"
#include "read/run_files.h"

namespace dtrain::analysis {
namespace {

using Element = simdjson::dom::element;
using Object = simdjson::dom::object;
using Array = simdjson::dom::array;
using profile::Phase;
using profile::Sketch;

std::int64_t to_integer(const Element& value, std::int64_t fallback = 0) {
  std::int64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS) return std::abs(number) <= kLargestInteger ? number : fallback;
  double real = 0;
  if (value.is_double() && value.get(real) == simdjson::SUCCESS && std::abs(real) <= double(kLargestInteger)) {
    return static_cast<std::int64_t>(real);
  }
  return fallback;
}

double to_double(const Element& value) {
  double number = 0;
  return value.is_number() && value.get(number) == simdjson::SUCCESS ? number : 0;
}

std::string_view to_text(const Element& value) {
  std::string_view text;
  return value.get(text) == simdjson::SUCCESS ? text : std::string_view();
}

// Reads times of phases. With kIfKnown a missing phase has -1; otherwise "train_batch" includes its parts in the dump.
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

// Returns a sketch; it is empty if the value is not a sketch.
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

// Reads a line into a record, by visiting the record's fields (dtrain/profile/records.h).
class FieldReader {
 public:
  explicit FieldReader(const Object& object) : begin_(object.begin()), at_(begin_), end_(object.end()) {
    if (at_ != end_ && at_.key() == "record") ++at_;
  }

  template <typename T>
  void operator()(profile::Key key, T& value) {
    if constexpr (std::same_as<T, LoaderUsage>) {
      const int before = found_;
      LoaderUsage::fields(*this, value);
      if (found_ > before && value.batches == 0) value.batches = 1;
    } else if (find(key.name)) {
      read(at_.value(), key.form, value);
      ++at_;
    }
  }
  // Skips the value of the dump: it is computed from others.
  void operator()(profile::Key key, std::int64_t&&) {
    if (at_ != end_ && at_.key() == key.name) ++at_;
  }

 private:
  // Finds a key. Keys usually come in the order of the calls.
  bool find(std::string_view name) {
    if (at_ == end_ || at_.key() != name) {
      auto other = begin_;
      while (other != end_ && other.key() != name) ++other;
      if (other == end_) return false;
      at_ = other;
    }
    ++found_;
    return true;
  }

  template <std::integral T>
  static void read(const Element& element, profile::Key::Form form, T& value) {
    bool truth = false;
    if (form == profile::Key::kTruth) {
      if (element.get(truth) == simdjson::SUCCESS) value = truth;
      return;
    }
    const std::int64_t number = to_integer(element, value);
    if (std::in_range<T>(number)) value = static_cast<T>(number);
  }
  template <std::floating_point T>
  static void read(const Element& element, profile::Key::Form, T& value) {
    value = static_cast<T>(to_double(element));
  }
  static void read(const Element& element, profile::Key::Form, std::optional<double>& value) {
    if (element.is_number()) value = to_double(element);
  }
  static void read(const Element& element, profile::Key::Form, std::string& value) { value = to_text(element); }
  static void read(const Element& element, profile::Key::Form, Operation& value) {
    value = operation_of(to_text(element));
  }
  static void read(const Element& element, profile::Key::Form form, profile::PhaseTimes& value) {
    read_phases(element, form, value);
  }
  static void read(const Element& element, profile::Key::Form, Sketch& value) { value = to_sketch(element); }
  static void read(const Element& element, profile::Key::Form, std::array<Sketch, profile::kPhaseCount>& value) {
    Object object;
    if (element.get(object) != simdjson::SUCCESS) return;
    FieldReader phases(object);
    for (std::size_t i = 0; i < value.size(); ++i) phases(name_of(static_cast<profile::Phase>(i)), value[i]);
  }
  template <typename T>
  static void read(const Element& element, profile::Key::Form form, std::vector<T>& value) {
    Array list;
    if (element.get(list) != simdjson::SUCCESS) return;
    constexpr std::size_t kMostItems = 1 << 16;  // a line of an untrusted file has any number of them
    for (const Element& item : list) {
      if (value.size() == kMostItems) return;
      if (item.is_object() || std::is_arithmetic_v<T>) read(item, form, value.emplace_back());
    }
  }
  template <typename T>
  requires std::is_class_v<T>
  static void read(const Element& element, profile::Key::Form, T& value) {
    Object object;
    if (element.get(object) != simdjson::SUCCESS) return;
    FieldReader fields(object);
    T::fields(fields, value);
  }

  Object::iterator begin_, at_, end_;
  int found_ = 0;
};

template <typename T>
T parse(const Object& object) {
  T line;
  FieldReader fields(object);
  T::fields(fields, line);
  return line;
}

// Return a text such as the `record` of a line, or a number of a field; empty or `fallback` for other types.
std::string_view text_of(const Object& object, std::string_view key) {
  std::string_view found;
  for (const auto& [name, value] : object) {
    if (name == key) found = to_text(value);
  }
  return found;
}

std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback = 0) {
  std::int64_t found = fallback;
  for (const auto& [name, value] : object) {
    if (name == key) found = to_integer(value, fallback);
  }
  return found;
}

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

CollectiveWindow sums_of(const profile::CollectiveSums& sums) {
  return {operation_of(sums.operation), sums.bucket,           sums.world_size,     sums.count, sums.bytes,
          sums.duration_ns.sum(),       sums.exposed_ns.sum(), sums.queued_ns.sum()};
}

// Returns the sums of a window, and adds its distributions to `sketches`.
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

constexpr std::pair<Operation, std::string_view> kNames[] = {
    {Operation::kAllReduce, "all_reduce"}, {Operation::kReduceScatter, "reduce_scatter"},
    {Operation::kAllGather, "all_gather"}, {Operation::kBroadcast, "broadcast"},
    {Operation::kBarrier, "barrier"},
};

struct Kind {
  std::string_view name;
  void (*hand_on)(const Object& line, DumpHandler& to);
};

constexpr Kind kKinds[] = {
    {"step", [](const Object& line, DumpHandler& to) { to.step(parse<StepLine>(line)); }},
    {"collective", [](const Object& line, DumpHandler& to) { to.collective(parse<CollectiveLine>(line)); }},
    {"loader", [](const Object& line, DumpHandler& to) { to.loader(parse<LoaderLine>(line)); }},
    {"scope", [](const Object& line, DumpHandler& to) { to.scope(parse<ScopeLine>(line)); }},
    {"system", [](const Object& line, DumpHandler& to) { to.system(parse_system(line)); }},
    {"gpu", [](const Object& line, DumpHandler& to) { to.gpu(parse_gpu(line)); }},
    {"part", [](const Object& line, DumpHandler& to) { to.part(parse<PartLine>(line)); }},
    {"clock", [](const Object& line, DumpHandler& to) { to.clock(parse<ClockLine>(line)); }},
    {"memory", [](const Object& line, DumpHandler& to) { to.memory(parse<MemoryLine>(line)); }},
    {"device_memory", [](const Object& line, DumpHandler& to) { to.device_memory(parse<DeviceMemoryLine>(line)); }},
    {"window",
     [](const Object& line, DumpHandler& to) {
       WindowSketches sketches;
       const WindowLine window = parse_window(line, sketches);
       to.window(window, sketches);
     }},
    {"dropped", [](const Object& line, DumpHandler& to) { to.dropped(integer_of(line, "count")); }},
    {"lost", [](const Object& line,
                DumpHandler& to) { to.lost(integer_of(line, "count"), std::string(text_of(line, "reason"))); }},
    {"end", [](const Object& line, DumpHandler& to) { to.end(parse<EndLine>(line)); }},
};

// Lines that later lines replace: the monitor was killed before it had copied the later lines to their place
// (docs/profile-format.md#bounded-dumps).
struct ReplacedBytes {
  std::int64_t begin = 0, end = 0;
  bool hold(std::int64_t offset) const { return offset >= begin && offset < end; }
};

bool is_replacement_note(std::string_view line) {
  return line.starts_with(R"({"record":"replaced")");
}

std::int64_t size_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::int64_t>(info.st_size) : 0;
}

// Finds the replaced bytes. If the replacing lines are incomplete, these are ignored instead.
std::vector<ReplacedBytes> find_replaced(const std::filesystem::path& path) {
  std::vector<ReplacedBytes> result;
  UniqueFd fd = open_regular(path);
  const std::int64_t size = size_of(fd.get());
  FileLines lines(std::move(fd));
  std::int64_t at = 0;
  bool cut_off = false;
  for (std::string_view line; lines.next(line, cut_off);) {
    const std::int64_t begin = at;
    at = plus(at, std::ssize(line) + 1);
    if (cut_off || !is_replacement_note(line)) continue;
    const std::optional<Json> json = parse_if_valid(line);
    if (!json || !json->is_object()) continue;
    const std::int64_t bytes = std::max<std::int64_t>(0, integer(*json, "bytes"));
    const bool whole = minus(size, at) >= bytes;
    const std::int64_t offset = integer(*json, "offset", begin);
    result.push_back(whole && offset >= 0 ? ReplacedBytes{std::min(offset, begin), at}
                                          : ReplacedBytes{begin, plus(at, bytes)});
  }
  return result;
}

}  // namespace

std::string_view name_of(Operation operation) {
  for (const auto& [value, name] : kNames) {
    if (value == operation) return name;
  }
  return "other";
}

Operation operation_of(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return Operation::kOther;
}

struct DumpLineReader::Parser {
  simdjson::dom::parser json;
};

DumpLineReader::DumpLineReader() : parser_(std::make_unique<Parser>()) {}
DumpLineReader::~DumpLineReader() = default;

LineKind DumpLineReader::read(std::string_view line, DumpHandler& handler) {
  Object object;
  std::string_view kind;
  if (parser_->json.parse(line.data(), line.size(), false).get(object) == simdjson::SUCCESS)
    kind = text_of(object, "record");
  if (kind.empty()) return LineKind::kUnreadable;
  if (kind == "header") {
    schema_ = integer_of(object, "schema");
    if (schema_ > kNewestSchema) return LineKind::kNewerSchema;
    const std::optional<Json> header = parse_if_valid(line);
    if (!header) return LineKind::kUnreadable;
    handler.header(*header);
    return LineKind::kUnderstood;
  }
  for (const Kind& known : kKinds) {
    if (kind != known.name) continue;
    known.hand_on(object, handler);
    return LineKind::kUnderstood;
  }
  return LineKind::kUnknown;
}

namespace {

ReadResult read_lines_of_dump(const std::filesystem::path& path, DumpHandler& handler) {
  std::vector<ReplacedBytes> replaced;
  ReadResult result;
  auto lines = std::make_unique<FileLines>(open_regular(path));
  auto reader = std::make_unique<DumpLineReader>();
  std::int64_t at = 0;
  bool cut_off = false;
  for (std::string_view line; lines->next(line, cut_off);) {
    const std::int64_t begin = at;
    at += std::ssize(line) + 1;
    const auto holds = [begin](const ReplacedBytes& bytes) { return bytes.hold(begin); };
    if (line.empty() || std::any_of(replaced.begin(), replaced.end(), holds)) continue;
    if (replaced.empty() && is_replacement_note(line)) {
      replaced = find_replaced(path);
      if (replaced.empty()) continue;
      handler.restart();
      result = {};
      lines = std::make_unique<FileLines>(open_regular(path));
      reader = std::make_unique<DumpLineReader>();
      at = 0;
      continue;
    }
    switch (reader->read(line, handler)) {
      case LineKind::kUnderstood:
        ++result.lines;
        break;
      case LineKind::kUnknown:
        ++result.unknown;
        break;
      case LineKind::kUnreadable:
        cut_off ? void(result.torn_end = true) : void(++result.unreadable);
        break;
      case LineKind::kNewerSchema:
        result.error = path.string() + " has schema " + std::to_string(reader->schema()) + "; this dtrain reads " +
                       std::to_string(kNewestSchema) + " and older: use the dtrain that wrote it, or a newer one";
        return result;
    }
  }
  if (lines->too_long()) {
    result.error = path.string() + ":" + std::to_string(lines->number() + 1) + ": longer than " +
                   format_bytes(FileLines::kLongestLine) + "; it and what follows it is not read";
  }
  return result;
}

}  // namespace

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler) {
  try {
    return read_lines_of_dump(path, handler);
  } catch (const Error& error) {
    ReadResult result;
    result.error = error.what();
    return result;
  }
}

}  // namespace dtrain::analysis
