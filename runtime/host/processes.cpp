#include "dtrain/host/processes.h"

#include <cmath>
#include <string_view>

#include <unistd.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {
namespace {

// Returns the fields after the name in "12 (a name) S …". The name may hold spaces and parentheses, so the fields begin
// after the last parenthesis. Empty: no such process.
std::string_view fields_of(const std::optional<std::string>& stat) {
  const std::size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  return name_end == std::string::npos ? std::string_view() : std::string_view(*stat).substr(name_end + 1);
}

bool has_grown(const std::optional<std::uint64_t>& before, const std::optional<std::uint64_t>& after) {
  return before && after && *after > *before;
}

// Returns the smallest limit that was reached between the readings; null: none, so the machine's memory was full.
const MemoryLimit* limit_reached(const MemoryKills& before, const MemoryKills& after) {
  const MemoryLimit* found = nullptr;
  for (const MemoryLimit& now : after.limits) {
    for (const MemoryLimit& then : before.limits) {
      const bool reached = now.group == then.group && now.reached > then.reached;
      if (reached && (!found || now.bytes < found->bytes)) found = &now;
    }
  }
  return found;
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

ProcessState read_process_state(pid_t pid) {
  const auto text = read_proc_file("/proc/" + std::to_string(pid) + "/status");
  const auto after = [&](std::string_view key) {
    const std::size_t at = text ? text->find(key) : std::string::npos;
    return at == std::string::npos ? std::string_view() : std::string_view(*text).substr(at + key.size());
  };
  const std::string_view state = after("\nState:\t"), tracer = after("\nTracerPid:\t"), parent = after("\nPPid:\t");
  return {.state = state.empty() ? '?' : state[0],
          .traced = !tracer.empty() && tracer[0] != '0',
          .parent = std::atoi(std::string(parent.substr(0, parent.find('\n'))).c_str())};
}

std::uint64_t start_ticks(pid_t pid) {
  // In a container of another processor qemu-user makes up /proc/PID/stat, with the start of the thread that reads it.
  const std::string number = std::to_string(pid);
  const auto text = read_proc_file("/proc/" + number + "/task/" + number + "/stat");
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

MemoryKills read_memory_kills(const std::filesystem::path& root) {
  MemoryKills result;
  const std::string text = read_proc_file(root / "proc/vmstat").value_or("");
  for (Fields lines(text, '\n'); const auto line = lines.next();) {
    Fields fields(*line, ' ');
    if (fields.next() == "oom_kill") result.machine = fields.number();
  }
  const Cgroups groups = cgroups_of(0, root);
  result.group = memory_kills(groups);
  result.limits = memory_limits(groups);
  return result;
}

std::string who_killed(const MemoryKills& before, const MemoryKills& after) {
  if (has_grown(before.group, after.group)) {
    const MemoryLimit* const limit = limit_reached(before, after);
    const std::string remedy = "use fewer ranks, a smaller batch, or fewer batches ahead";
    if (!limit) return "the kernel killed it, because this machine has no memory left: " + remedy;
    return "the kernel killed it, because " + describe_cgroup(limit->group) + " has reached its limit of " +
           format_bytes(static_cast<double>(limit->bytes)) + " of memory (" + limit->file + "): raise the limit, or " +
           remedy;
  }
  const std::string another = "dtrain did not send this signal: another process did";
  if (!before.machine || !after.machine) return another + ", or there was no memory left (see dmesg)";
  if (!has_grown(before.machine, after.machine)) return another + "; the kernel has killed none for lack of memory";
  return another + ", or the kernel, which has killed a process for lack of memory meanwhile (see dmesg)";
}

}  // namespace dtrain::host
