#include "read/dump_line.h"

#include <simdjson.h>

#include "read/dump_parse.h"

namespace dtrain::analysis {
namespace {

// False for an unknown kind.
bool dispatch(const Object& object, std::string_view kind, std::string_view line, DumpHandler& handler) {
  if (kind == "step") {
    handler.step(parse_step(object));
  } else if (kind == "collective") {
    handler.collective(parse_collective(object));
  } else if (kind == "loader") {
    handler.loader(parse_loader(object));
  } else if (kind == "system") {
    handler.system(parse_system(object));
  } else if (kind == "gpu") {
    handler.gpu(parse_gpu(object));
  } else if (kind == "part") {
    handler.part(parse_part(object));
  } else if (kind == "clock") {
    handler.clock(parse_clock(object));
  } else if (kind == "memory") {
    handler.memory(parse_memory(object));
  } else if (kind == "device_memory") {
    handler.device_memory(parse_device_memory(object));
  } else if (kind == "window") {
    WindowSketches sketches;
    const WindowLine window = parse_window(object, sketches);
    handler.window(window, sketches);
  } else if (kind == "header") {
    handler.header(Json::parse(line, nullptr, false));
  } else if (kind == "dropped") {
    handler.dropped(integer_of(object, "count"));
  } else if (kind == "lost") {
    handler.lost(integer_of(object, "count"), std::string(text_of(object, "reason")));
  } else if (kind == "end") {
    handler.end(parse_end(object));
  } else {
    return false;
  }
  return true;
}

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
  }
  return dispatch(object, kind, line, handler) ? LineKind::kUnderstood : LineKind::kUnknown;
}

}  // namespace dtrain::analysis
