// Reads the dumps of docs/profile-format.md line by line. It also reads damaged dumps: it counts and skips an
// incomplete last line, damaged lines and record kinds of later versions. Any thread may call; handlers are called on
// the caller's thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/analysis/dump_lines.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

// Receives the lines of a dump. By default each callback does nothing.
class DumpHandler {
 public:
  virtual ~DumpHandler() = default;
  // Discards everything read so far: the dump is read again from its start, without lines that later lines replace.
  virtual void restart() {}
  virtual void header(const Json&) {}
  virtual void step(const StepLine&) {}
  virtual void collective(const CollectiveLine&) {}
  virtual void scope(const ScopeLine&) {}
  virtual void part(const PartLine&) {}
  virtual void loader(const LoaderLine&) {}
  virtual void clock(const ClockLine&) {}
  virtual void memory(const MemoryLine&) {}
  virtual void device_memory(const DeviceMemoryLine&) {}
  virtual void window(const WindowLine&, const WindowSketches&) {}
  virtual void system(const SystemLine&) {}
  virtual void gpu(const GpuLine&) {}
  virtual void dropped(std::int64_t /*count*/) {}
  virtual void lost(std::int64_t /*count*/, const std::string& /*reason*/) {}
  virtual void end(const EndLine&) {}
};

struct ReadResult {
  std::int64_t lines = 0;            // understood
  std::int64_t unknown = 0;          // records of a kind that this version does not know
  std::int64_t unreadable = 0;       // not records; the incomplete last line does not count
  bool torn_end = false;             // the last line was cut off
  std::optional<std::string> error;  // reason why the file or its rest was not read: missing, or a newer schema
};

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler);

}  // namespace dtrain::analysis
