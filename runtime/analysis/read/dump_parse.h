// The lines of a dump that are not one record as it is declared (field_reader.h).
#pragma once

#include <string_view>

#include "read/field_reader.h"

namespace dtrain::analysis {

// The `record` of a line, and the number of a field; empty and `fallback` where it is none.
std::string_view text_of(const Object& object, std::string_view key);
std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback = 0);

// Sums go into the WindowLine, distributions into WindowSketches.
WindowLine parse_window(const Object& object, WindowSketches& sketches);
SystemLine parse_system(const Object& object);
GpuLine parse_gpu(const Object& object);

}  // namespace dtrain::analysis
