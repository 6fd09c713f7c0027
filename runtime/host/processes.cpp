#include "dtrain/host/processes.h"

#include <unistd.h>

#include <string>

#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {

std::optional<ProcessUsage> read_process(pid_t pid, const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc" / std::to_string(pid) / "stat");
  // "12 (a name) S …": the name may hold spaces and parentheses, so fields are counted from its last one.
  const std::size_t name_end = text ? text->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return std::nullopt;
  Fields fields(std::string_view(*text).substr(name_end + 1), ' ');
  fields.skip(11);  // state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt
  const std::uint64_t user_ticks = fields.number();
  const std::uint64_t system_ticks = fields.number();
  fields.skip(8);  // cutime cstime priority nice threads itrealvalue starttime vsize
  const std::uint64_t resident_pages = fields.number();
  static const auto ticks_per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  ProcessUsage usage;
  usage.resident_bytes = resident_pages * page_bytes;
  usage.cpu = std::chrono::nanoseconds((user_ticks + system_ticks) * (1'000'000'000 / ticks_per_second));
  return usage;
}

}  // namespace dtrain::host
