#include "dtrain/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "dtrain/base/text.h"

namespace dtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;  // v1 writes a number near 2^63 where there is none

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::optional<std::int64_t> leading_number(std::string_view text) {
  return take_number<std::int64_t>(text);
}

// Returns the value of the line "name value" in a file such as cpu.stat; 0: there is no such line.
std::uint64_t field_of(const std::string& text, std::string_view name) {
  for (const std::string& line : split(text, '\n')) {
    if (line.size() <= name.size() || !line.starts_with(name) || line[name.size()] != ' ') continue;
    return static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, leading_number(line.substr(name.size() + 1)).value_or(0)));
  }
  return 0;
}

struct Mount {
  fs::path at;      // on this machine
  std::string top;  // the group that is seen there as the folder itself
  bool v2 = false;
  std::vector<std::string> controllers;  // v1
};

// Reads lines like "36 25 0:31 /docker/1f /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory".
std::vector<Mount> mounts_of(const fs::path& root) {
  std::vector<Mount> mounts;
  for (const std::string& line : split(text_of(root / "proc/self/mountinfo"), '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = split(line.substr(0, dash), ' ');
    const std::vector<std::string> after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3 || (after[0] != "cgroup" && after[0] != "cgroup2")) continue;
    mounts.push_back(
        {root / fs::path(before[4]).relative_path(), before[3], after[0] == "cgroup2", split(after[2], ',')});
  }
  if (!mounts.empty()) return mounts;
  const fs::path usual = root / "sys/fs/cgroup";  // used if mountinfo cannot be read
  return {{usual, "/", true, {}},
          {usual / "unified", "/", true, {}},
          {usual / "cpu", "/", false, {"cpu"}},
          {usual / "cpu,cpuacct", "/", false, {"cpu"}},
          {usual / "memory", "/", false, {"memory"}},
          {usual / "pids", "/", false, {"pids"}},
          {usual / "cpuset", "/", false, {"cpuset"}}};
}

bool contains(const std::vector<std::string>& list, const char* word) {
  return std::ranges::find(list, word) != list.end();
}

// Adds the group and its ancestors, as far as the mount shows them. Without a cgroup namespace a container sees the
// path that its host uses, and only its own group is mounted. A process moved out of the namespace has a path with
// "..".
void add_groups(const Mount& mount, const std::string& group, std::vector<Cgroup>& into) {
  const bool below = group == mount.top || mount.top == "/" || group.starts_with(mount.top + "/");
  const bool visible = below && group.find("..") == std::string::npos;
  fs::path path = visible ? group : mount.top;
  for (;;) {
    fs::path inside = path.lexically_relative(mount.top);
    std::error_code error;
    fs::path folder = inside == "." ? mount.at : mount.at / inside;
    if (fs::is_directory(folder, error)) into.push_back({path.string(), std::move(folder), mount.v2});
    if (path == mount.top || !path.has_relative_path()) return;
    path = path.parent_path();
  }
}

std::optional<std::uint64_t> limit_in(const fs::path& file) {
  const auto bytes = leading_number(text_of(file));  // "max": no number
  if (!bytes || *bytes < 0 || static_cast<std::uint64_t>(*bytes) >= kNoLimit) return std::nullopt;
  return static_cast<std::uint64_t>(*bytes);
}

std::optional<MemoryLimit> memory_limit(const Cgroup& group) {
  MemoryLimit limit{.group = group.name};
  const auto consider = [&](const char* file, std::optional<std::uint64_t> bytes) {
    if (!bytes || (!limit.file.empty() && *bytes >= limit.bytes)) return;
    limit.file = file;
    limit.bytes = *bytes;
  };
  std::string stat;
  if (group.v2) {
    consider("memory.max", limit_in(group.folder / "memory.max"));
    consider("memory.high", limit_in(group.folder / "memory.high"));  // above it the kernel slows processes down
  } else {
    consider("memory.limit_in_bytes", limit_in(group.folder / "memory.limit_in_bytes"));
    stat = text_of(group.folder / "memory.stat");
    // The value may be the limit of an ancestor that a container does not see.
    const std::uint64_t of_all = field_of(stat, "hierarchical_memory_limit");
    if (of_all > 0 && of_all < kNoLimit) consider("hierarchical_memory_limit", of_all);
  }
  if (limit.file.empty()) return std::nullopt;
  if (group.v2) stat = text_of(group.folder / "memory.stat");
  const std::string prefix = group.v2 ? "" : "total_";
  const auto usage =
      leading_number(text_of(group.folder / (group.v2 ? "memory.current" : "memory.usage_in_bytes"))).value_or(0);
  const std::uint64_t caches = field_of(stat, prefix + "inactive_file") + field_of(stat, prefix + "active_file") +
                               (group.v2 ? field_of(stat, "slab_reclaimable") : 0);
  const auto used = static_cast<std::uint64_t>(std::max<std::int64_t>(0, usage));
  limit.used = used > caches ? used - caches : 0;
  limit.reached =
      group.v2 ? field_of(text_of(group.folder / "memory.events"), "oom")
               : static_cast<std::uint64_t>(leading_number(text_of(group.folder / "memory.failcnt")).value_or(0));
  return limit;
}

}  // namespace

Cgroups cgroups_of(pid_t pid, const fs::path& root) {
  Cgroups result;
  const std::vector<Mount> mounts = mounts_of(root);
  const std::string process = pid == 0 ? "self" : std::to_string(pid);
  for (const std::string& line : split(text_of(root / "proc" / process / "cgroup"), '\n')) {
    const std::size_t first = line.find(':');  // "0::/user.slice" (v2) or "4:cpu,cpuacct:/docker/1f" (v1)
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size()) continue;
    const bool v2 = line.starts_with("0::");
    const std::vector<std::string> controllers = split(line.substr(first + 1, second - first - 1), ',');
    for (const Mount& mount : mounts) {
      if (mount.v2 != v2) continue;
      const auto has = [&](const char* word) {
        return v2 || (contains(controllers, word) && contains(mount.controllers, word));
      };
      if (has("cpu")) add_groups(mount, line.substr(second + 1), result.cpu);
      if (has("memory")) add_groups(mount, line.substr(second + 1), result.memory);
      if (has("pids")) add_groups(mount, line.substr(second + 1), result.pids);
      if (has("cpuset")) add_groups(mount, line.substr(second + 1), result.cpuset);
    }
  }
  return result;
}

std::optional<ProcessesLimit> full_of_processes(const Cgroups& groups) {
  for (const Cgroup& group : groups.pids) {
    const fs::path file = group.folder / "pids.max";
    const auto most = limit_in(file);
    const auto now = leading_number(text_of(group.folder / "pids.current"));
    if (most && now && static_cast<std::uint64_t>(std::max<std::int64_t>(0, *now)) >= *most) {
      return ProcessesLimit{group.name, file.string(), *most};
    }
  }
  return std::nullopt;
}

std::vector<CpuQuota> cpu_quotas(const Cgroups& groups) {
  std::vector<CpuQuota> result;
  for (const Cgroup& group : groups.cpu) {
    std::optional<std::int64_t> quota, period;
    if (group.v2) {  // "200000 100000" or "max 100000"
      std::istringstream words(text_of(group.folder / "cpu.max"));
      std::string first, second;
      words >> first >> second;
      quota = leading_number(first);
      period = leading_number(second);
    } else {
      quota = leading_number(text_of(group.folder / "cpu.cfs_quota_us"));  // -1: no limit
      period = leading_number(text_of(group.folder / "cpu.cfs_period_us"));
    }
    if (quota.value_or(0) <= 0 || period.value_or(0) <= 0) continue;
    const std::string stat = text_of(group.folder / "cpu.stat");
    CpuQuota limit{.group = group.name,
                   .cpus = static_cast<double>(*quota) / static_cast<double>(*period),
                   .period = std::chrono::microseconds(*period)};
    limit.periods = field_of(stat, "nr_periods");
    limit.throttled = field_of(stat, "nr_throttled");
    limit.throttled_time = group.v2 ? std::chrono::microseconds(field_of(stat, "throttled_usec"))
                                    : std::chrono::nanoseconds(field_of(stat, "throttled_time"));
    result.push_back(limit);
  }
  return result;
}

// A group that has no set of its own has that of its nearest ancestor that has one.
std::vector<int> cpus_of(const Cgroups& groups) {
  for (const Cgroup& group : groups.cpuset) {
    const std::string set = text_of(group.folder / (group.v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus"));
    std::string_view text = set;
    if (std::vector<int> cpus = take_ranges(text); !cpus.empty()) return cpus;
  }
  return {};
}

std::vector<MemoryLimit> memory_limits(const Cgroups& groups) {
  std::vector<MemoryLimit> result;
  for (const Cgroup& group : groups.memory) {
    if (auto limit = memory_limit(group)) result.push_back(std::move(*limit));
  }
  return result;
}

const MemoryLimit* tightest(const std::vector<MemoryLimit>& limits) {
  const auto least = std::ranges::min_element(limits, {}, &MemoryLimit::free);
  return least == limits.end() ? nullptr : &*least;
}

std::optional<std::uint64_t> memory_kills(const Cgroups& groups) {
  for (const Cgroup& group : groups.memory) {
    const std::string text = text_of(group.folder / (group.v2 ? "memory.events" : "memory.oom_control"));
    if (text.find("oom_kill ") != std::string::npos) return field_of(text, "oom_kill");
  }
  return std::nullopt;
}

std::string describe_cgroup(const std::string& name) {
  return name.empty() || name == "/" ? "the cgroup of this container" : "the cgroup " + name;
}

std::optional<std::size_t> available_memory() {
  std::optional<std::size_t> available;
  for (const std::string& line : split(text_of("/proc/meminfo"), '\n')) {
    constexpr std::string_view kName = "MemAvailable:";
    const std::size_t begin = line.starts_with(kName) ? line.find_first_not_of(' ', kName.size()) : std::string::npos;
    if (begin == std::string::npos) continue;
    if (const auto kib = leading_number(line.substr(begin))) available = static_cast<std::size_t>(*kib) * 1024;
  }
  const std::vector<MemoryLimit> limits = memory_limits(cgroups_of(0));
  const MemoryLimit* const limit = tightest(limits);
  if (limit && (!available || limit->free() < *available)) available = limit->free();
  return available;
}

}  // namespace dtrain
