#include "dtrain/host/memory.h"

#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {

std::optional<MemoryReading> read_memory(const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc/meminfo");
  if (!text) return std::nullopt;
  MemoryReading reading;
  for (Fields lines(*text, '\n'); const auto line = lines.next();) {
    Fields fields(*line, ' ');  // "MemAvailable:   12345 kB"
    const std::string_view name = fields.next().value_or("");
    if (name == "MemTotal:") reading.total = fields.number() * 1024;
    if (name == "MemAvailable:") reading.available = fields.number() * 1024;
  }
  if (reading.total == 0) return std::nullopt;
  return reading;
}

}  // namespace dtrain::host
