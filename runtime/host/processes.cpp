#include "dtrain/host/processes.h"

#include <unistd.h>

#include <cmath>
#include <string>
#include <string_view>

#include "dtrain/base/text.h"
#include "dtrain/base/time_namespace.h"
#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {
namespace {

// Returns the fields after the name in "12 (a name) S …". The name may hold spaces and parentheses, so the fields begin
// after the last parenthesis. Empty: no such process.
std::string_view fields_of(const std::optional<std::string>& stat) {
  const std::size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  return name_end == std::string::npos ? std::string_view() : std::string_view(*stat).substr(name_end + 1);
}

}  // namespace

std::optional<ProcessUsage> read_process(pid_t pid, const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc" / std::to_string(pid) / "stat");
  if (fields_of(text).empty()) return std::nullopt;
  Fields fields(fields_of(text), ' ');
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

std::vector<pid_t> child_processes(pid_t pid, const std::filesystem::path& root) {
  const std::string number = std::to_string(pid);
  const std::string text = read_proc_file(root / "proc" / number / "task" / number / "children").value_or("");
  std::vector<pid_t> result;
  for (Fields fields(text, ' '); auto field = fields.next();) {
    if (const pid_t child = take_number<pid_t>(*field).value_or(0); child > 0) result.push_back(child);
  }
  return result;
}

std::optional<ProcessMemory> read_process_memory(pid_t pid, const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc" / std::to_string(pid) / "status");
  if (!text) return std::nullopt;
  const auto bytes_of = [&text](std::string_view name) -> std::optional<std::uint64_t> {
    const std::size_t at = text->find(name);
    if (at == std::string::npos) return std::nullopt;
    Fields fields(std::string_view(*text).substr(at + name.size()), ' ');
    return fields.number() * 1024;
  };
  const auto resident = bytes_of("\nVmRSS:\t");
  const auto peak = bytes_of("\nVmHWM:\t");
  const auto anonymous = bytes_of("\nRssAnon:\t");
  if (!resident || !peak || !anonymous) return std::nullopt;  // a zombie has no memory any more
  return ProcessMemory{*resident, *peak, *anonymous};
}

std::optional<std::chrono::nanoseconds> read_core_wait(pid_t thread, const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc" / std::to_string(thread) / "schedstat");
  if (!text) return std::nullopt;
  Fields fields(*text, ' ');
  fields.skip(1);  // time on a core
  return std::chrono::nanoseconds(fields.number());
}

bool is_stopped(pid_t pid) {
  const auto text = read_proc_file("/proc/" + std::to_string(pid) + "/stat");
  Fields fields(fields_of(text), ' ');
  const std::string_view state = fields.next().value_or("X");
  return state == "T" || state == "t";
}

std::uint64_t start_ticks(pid_t pid) {
  const auto text = read_proc_file("/proc/" + std::to_string(pid) + "/stat");
  Fields fields(fields_of(text), ' ');
  const std::string_view state = fields.next().value_or("X");
  if (state == "Z" || state == "X") return 0;
  fields.skip(18);  // ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime
                    // priority nice threads itrealvalue
  // The kernel reports the start time in this process's time namespace.
  const auto offset =
      std::chrono::duration<double>(boottime_offset()).count() * static_cast<double>(::sysconf(_SC_CLK_TCK));
  return fields.number() - static_cast<std::uint64_t>(std::llround(offset));
}

}  // namespace dtrain::host
