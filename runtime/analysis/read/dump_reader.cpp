#include "dtrain/analysis/dump_reader.h"

#include <fcntl.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/analysis/dump_lines.h"
#include "dtrain/base/fd.h"
#include "read/dump_line.h"
#include "read/dump_parse.h"
#include "read/file_lines.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

constexpr std::pair<Operation, std::string_view> kNames[] = {
    {Operation::kAllReduce, "all_reduce"}, {Operation::kReduceScatter, "reduce_scatter"},
    {Operation::kAllGather, "all_gather"}, {Operation::kBroadcast, "broadcast"},
    {Operation::kBarrier, "barrier"},
};

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

namespace {

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

}  // namespace

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
    handler.header(Json::parse(line, nullptr, false));
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

// Lines that later lines replace: the agent was killed before it had copied the later lines to their place
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
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return result;
  const std::int64_t size = size_of(fd.get());
  FileLines lines(std::move(fd));
  std::int64_t at = 0;
  bool cut_off = false;
  for (std::string_view line; lines.next(line, cut_off);) {
    const std::int64_t begin = at;
    at = plus(at, std::ssize(line) + 1);
    if (cut_off || !is_replacement_note(line)) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const std::int64_t bytes = std::max<std::int64_t>(0, integer(json, "bytes"));
    const bool whole = minus(size, at) >= bytes;
    const std::int64_t offset = integer(json, "offset", begin);
    result.push_back(whole && offset >= 0 ? ReplacedBytes{std::min(offset, begin), at}
                                          : ReplacedBytes{begin, plus(at, bytes)});
  }
  return result;
}

}  // namespace

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler) {
  std::vector<ReplacedBytes> replaced;
  const auto open_dump = [&] { return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); };
  ReadResult result;
  UniqueFd fd = open_dump();
  if (!fd) {
    result.error = "cannot read " + path.string();
    return result;
  }
  auto lines = std::make_unique<FileLines>(std::move(fd));
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
      fd = open_dump();
      if (!fd || replaced.empty()) continue;
      handler.restart();
      result = {};
      lines = std::make_unique<FileLines>(std::move(fd));
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
  return result;
}

}  // namespace dtrain::analysis
