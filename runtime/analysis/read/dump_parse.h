// Parses the lines of a dump that are not one record as it is declared (field_reader.h).
#pragma once

#include <string_view>

#include "read/field_reader.h"

namespace dtrain::analysis {

// Return a text such as the `record` of a line, or a number of a field; empty or `fallback` for other types.
std::string_view text_of(const Object& object, std::string_view key);
std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback = 0);

// Returns the sums of a window, and adds its distributions to `sketches`.
WindowLine parse_window(const Object& object, WindowSketches& sketches);
SystemLine parse_system(const Object& object);
GpuLine parse_gpu(const Object& object);

}  // namespace dtrain::analysis
