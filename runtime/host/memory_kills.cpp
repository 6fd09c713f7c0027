#include "dtrain/host/memory_kills.h"

#include "dtrain/base/units.h"
#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {
namespace {

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
