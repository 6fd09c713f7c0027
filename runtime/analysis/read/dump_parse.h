// One parsed line of a dump as a plain value. A value that is missing, of another type or implausible becomes the
// fallback.
#pragma once

#include <simdjson.h>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "dtrain/analysis/dump_lines.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

// Values of a parsed line of an untrusted file: a value of another type or an implausible one becomes the fallback.

using Element = simdjson::dom::element;
using Object = simdjson::dom::object;
using Array = simdjson::dom::array;

inline std::int64_t to_integer(const Element& value, std::int64_t fallback = 0) {
  std::int64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS) return std::abs(number) <= kLargestInteger ? number : fallback;
  double real = 0;
  if (value.is_double() && value.get(real) == simdjson::SUCCESS && std::abs(real) <= double(kLargestInteger)) {
    return static_cast<std::int64_t>(real);
  }
  return fallback;
}

inline std::int32_t to_small(const Element& value, std::int32_t fallback = 0) {
  const std::int64_t number = to_integer(value, fallback);
  return number >= INT32_MIN && number <= INT32_MAX ? static_cast<std::int32_t>(number) : fallback;
}

inline double to_double(const Element& value) {
  double number = 0;
  return value.is_number() && value.get(number) == simdjson::SUCCESS ? number : 0;
}

inline std::string_view to_text(const Element& value) {
  std::string_view text;
  return value.get(text) == simdjson::SUCCESS ? text : std::string_view();
}

inline bool to_bool(const Element& value) {
  bool truth = false;
  return value.get(truth) == simdjson::SUCCESS && truth;
}

// The `record` of a line, and the number of a field; empty and `fallback` where it is none.
std::string_view text_of(const Object& object, std::string_view key);
std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback = 0);

StepLine parse_step(const Object& object);
CollectiveLine parse_collective(const Object& object);
LoaderLine parse_loader(const Object& object);
ScopeLine parse_scope(const Object& object);
PartLine parse_part(const Object& object);
ClockLine parse_clock(const Object& object);
MemoryLine parse_memory(const Object& object);
WindowLine parse_window(const Object& object, WindowSketches& sketches);
SystemLine parse_system(const Object& object);
DeviceMemoryLine parse_device_memory(const Object& object);
GpuLine parse_gpu(const Object& object);
EndLine parse_end(const Object& object);

}  // namespace dtrain::analysis
