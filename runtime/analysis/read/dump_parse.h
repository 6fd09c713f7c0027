// One parsed line of a dump as a plain value. A value that is missing, of another type or implausible becomes the
// fallback.
#pragma once

#include "dtrain/analysis/dump_lines.h"
#include "dtrain/analysis/window_sketches.h"
#include "read/dump_values.h"

namespace dtrain::analysis {

// The `record` of a line, and the number of a field; empty and `fallback` where it is none.
std::string_view text_of(const Object& object, std::string_view key);
std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback = 0);

StepLine parse_step(const Object& object);
CollectiveLine parse_collective(const Object& object);
LoaderLine parse_loader(const Object& object);
PartLine parse_part(const Object& object);
ClockLine parse_clock(const Object& object);
MemoryLine parse_memory(const Object& object);
WindowLine parse_window(const Object& object, WindowSketches& sketches);
SystemLine parse_system(const Object& object);
DeviceMemoryLine parse_device_memory(const Object& object);
GpuLine parse_gpu(const Object& object);
EndLine parse_end(const Object& object);

}  // namespace dtrain::analysis
