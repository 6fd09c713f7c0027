#include "dtrain/host/cpu.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <hwloc.h>
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {
namespace {

// Returns the mask of a process (0: of the calling thread), ascending. SystemError: the kernel does not report it.
std::vector<int> affinity(pid_t process = 0) {
  // The kernel refuses a set smaller than its own, so the set grows until it fits.
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(size), [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    CPU_ZERO_S(bytes, set.get());
    if (::sched_getaffinity(process, bytes, set.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < size; ++cpu) {
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  throw SystemError("cannot read the CPU affinity of a process (sched_getaffinity)", errno);
}

constexpr double kOtherClock = 0.2;  // cores whose highest rates differ by more are of different kinds

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;

// hwloc opens its plugins for the first topology, and closes them with the last. An empty one stays, so that they are
// opened once.
void keep_plugins() {
  static const hwloc_topology_t kept = [] {
    hwloc_topology_t empty = nullptr;
    return hwloc_topology_init(&empty) == 0 ? empty : nullptr;
  }();
  static_cast<void>(kept);
}

// Loads only processors, cores, packages and NUMA nodes: devices and caches would take many times as long.
Topology load_topology(const std::filesystem::path& xml) {
  keep_plugins();
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {nullptr, hwloc_topology_destroy};
  Topology topology(raw, hwloc_topology_destroy);
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_CORE, HWLOC_OBJ_PACKAGE}) {
    hwloc_topology_set_type_filter(raw, type, HWLOC_TYPE_FILTER_KEEP_ALL);
  }
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);  // the nodes of one socket
  // CPUs that this process may not use are included, because they count in the numbers of the cores.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  const bool recorded = !xml.empty();
  if (recorded && (hwloc_topology_set_xml(raw, xml.c_str()) != 0 || hwloc_topology_load(raw) != 0)) {
    throw ConfigError("cannot read the topology in " + xml.string(), "lstopo of hwloc writes such a file");
  }
  if (!recorded && hwloc_topology_load(raw) != 0) return {nullptr, hwloc_topology_destroy};
  return topology;
}

// The facts that hwloc reports about a kind of cores.
struct Kind {
  std::string type;      // "IntelCore", "IntelAtom"; empty: not known
  std::string capacity;  // the kernel's measure of speed, on Arm; empty: not known
  double clock = 0;      // MHz; 0: not known

  bool is_like(const Kind& other) const {
    const double most = std::max(clock, other.clock);
    return type == other.type && capacity == other.capacity &&
           (clock == 0 || other.clock == 0 || std::abs(clock - other.clock) <= kOtherClock * most);
  }
};

// Returns the speed class of each CPU, from 0. hwloc lists kinds from the slowest on; it also separates cores that
// differ only in their turbo clock, which get the same class here.
std::map<int, int> kinds_of_cpus(hwloc_topology_t topology) {
  std::map<int, int> result;
  const int kinds = hwloc_cpukinds_get_nr(topology, 0);
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> cpus(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  std::optional<Kind> before;
  int number = 0;
  for (int index = 0; index < kinds; ++index) {
    int efficiency = -1;
    unsigned count = 0;
    hwloc_info_s* infos = nullptr;
    const auto kind_index = static_cast<unsigned>(index);
    if (hwloc_cpukinds_get_info(topology, kind_index, cpus.get(), &efficiency, &count, &infos, 0) != 0) return {};
    if (efficiency < 0) return {};  // hwloc does not know which are faster
    Kind kind;
    for (unsigned i = 0; i < count; ++i) {
      const std::string name = infos[i].name;
      if (name == "CoreType") kind.type = infos[i].value;
      if (name == "LinuxCapacity") kind.capacity = infos[i].value;
      if (name == "FrequencyMaxMHz") kind.clock = std::strtod(infos[i].value, nullptr);
    }
    if (before && !kind.is_like(*before)) ++number;
    before = kind;
    for (int cpu = hwloc_bitmap_first(cpus.get()); cpu >= 0; cpu = hwloc_bitmap_next(cpus.get(), cpu)) {
      result[cpu] = number;
    }
  }
  return result;
}

int node_of(hwloc_obj_t core) {
  return core->nodeset ? std::max(0, hwloc_bitmap_first(core->nodeset)) : 0;
}

int package_of(hwloc_topology_t topology, hwloc_obj_t core) {
  const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, core);
  return package ? static_cast<int>(package->os_index) : 0;
}

std::set<int> wanted_cpus(const TopologySource& source, hwloc_topology_t topology) {
  if (source.affinity) return {source.affinity->begin(), source.affinity->end()};
  std::set<int> cpus;
  if (source.xml.empty()) {
    const std::vector<int> mask = affinity();
    return {mask.begin(), mask.end()};
  }
  const hwloc_const_cpuset_t all = hwloc_topology_get_allowed_cpuset(topology);
  for (int cpu = hwloc_bitmap_first(all); cpu >= 0; cpu = hwloc_bitmap_next(all, cpu)) cpus.insert(cpu);
  return cpus;
}

double least_time(double cpus, const Cgroups& groups) {
  for (const CpuQuota& quota : cpu_quotas(groups)) cpus = std::min(cpus, quota.cpus);
  return cpus;
}

}  // namespace

std::vector<int> cpus_near_pci_device(const std::string& address, const std::filesystem::path& root) {
  // Linux writes the domain with four digits, NVML with eight, and Linux all of it in small letters.
  constexpr std::size_t kDigitsOfDomain = 4;
  std::string name = address;
  const std::size_t colon = name.find(':');
  if (colon == std::string::npos || name.find('/') != std::string::npos) return {};
  if (colon > kDigitsOfDomain) name.erase(0, colon - kDigitsOfDomain);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  const std::filesystem::path file = root / "sys/bus/pci/devices" / name / "local_cpulist";
  const std::string cpus = read_proc_file(file).value_or("");
  std::string_view text = cpus;
  return take_ranges(text);
}

std::optional<CpuInstructions> cpu_instructions(const std::filesystem::path& root) {
  for (const std::string& line : split(read_proc_file(root / "proc/cpuinfo").value_or(""), '\n')) {
    const bool x86 = line.starts_with("flags");
    const std::size_t colon = line.find(':');
    if ((!x86 && !line.starts_with("Features")) || colon == std::string::npos) continue;
    const std::vector<std::string> words = split(line.substr(colon + 1), ' ');
    const auto has = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
    // The length of Arm's scalable vectors is not reported here; every such processor has at least 128 bits.
    if (!x86) return CpuInstructions{128, has("bf16") || has("svebf16")};
    return CpuInstructions{has("avx512f") ? 512 : has("avx") ? 256 : 128, has("avx512_bf16") || has("amx_bf16")};
  }
  return std::nullopt;
}

Processor processor(const std::filesystem::path& root) {
  std::map<std::string, std::string> first;  // the first CPU's value of each field
  for (const std::string& line : split(read_proc_file(root / "proc/cpuinfo").value_or(""), '\n')) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    first.try_emplace(line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1),
                      value == std::string::npos ? "" : line.substr(value));
  }
  // The first form is of x86; Arm's processors have numbers instead of a name.
  if (first.contains("model name") && first.contains("cpu family")) {
    return {first["model name"], first["cpu family"] + "." + first["model"] + "." + first["stepping"]};
  }
  if (!first.contains("CPU part")) return {};
  return {"CPU " + first["CPU implementer"] + "/" + first["CPU part"],
          first["CPU architecture"] + "." + first["CPU variant"] + "." + first["CPU revision"]};
}

bool is_amd_with_avx2() {
#ifdef __x86_64__
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

std::size_t last_level_cache(const std::filesystem::path& root) {
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long bytes = ::sysconf(level); bytes > 0) return static_cast<std::size_t>(bytes);
  }
  // The C library knows only the caches of x86. Linux lists a CPU's caches from the first level on, as "32768K".
  std::size_t largest = 0;
  for (int index = 0;; ++index) {
    const auto cache = root / "sys/devices/system/cpu/cpu0/cache" / ("index" + std::to_string(index));
    const auto text = read_proc_file(cache / "size");
    if (!text) return largest;
    std::string_view size = *text;
    largest = std::max(largest, take_number<std::size_t>(size).value_or(0) << 10);
  }
}

double cpu_limit(const std::filesystem::path& root) {
  return least_time(static_cast<double>(affinity().size()), cgroups_of(0, root));
}

std::vector<Core> usable_cores(const TopologySource& source) {
  const Topology topology = load_topology(source.xml);
  std::set<int> left = wanted_cpus(source, topology.get());
  const std::map<int, int> kinds = topology ? kinds_of_cpus(topology.get()) : std::map<int, int>();
  std::map<int, Core> all;  // by their first CPU
  hwloc_obj_t object = nullptr;
  while (topology && (object = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, object)) != nullptr) {
    const int first = hwloc_bitmap_first(object->cpuset);
    if (first < 0) continue;
    Core core{.node = node_of(object), .package = package_of(topology.get(), object)};
    for (int cpu = first; cpu >= 0; cpu = hwloc_bitmap_next(object->cpuset, cpu)) {
      if (left.erase(cpu) != 0) core.cpus.push_back(cpu);
    }
    if (const auto kind = kinds.find(first); kind != kinds.end()) core.kind = kind->second;
    all[first] = std::move(core);
  }
  for (const int cpu : left) all[cpu].cpus = {cpu};
  std::vector<Core> cores;
  int number = 0;
  for (auto& [first, core] : all) {
    core.number = number++;
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) { return a.cpus < b.cpus; });
  return cores;
}

std::vector<std::vector<int>> physical_cores() {
  std::vector<std::vector<int>> cores;
  for (Core& core : usable_cores()) cores.push_back(std::move(core.cpus));
  return cores;
}

std::vector<int> allowed_cpus() {
  const std::vector<std::vector<int>> cores = physical_cores();
  std::vector<int> cpus;
  for (std::size_t sibling = 0, before = 1; before > 0; ++sibling) {
    before = 0;
    for (const std::vector<int>& core : cores) {
      if (sibling < core.size()) {
        cpus.push_back(core[sibling]);
        ++before;
      }
    }
  }
  return cpus;
}

ProcessCores process_cores(const std::filesystem::path& root) {
  ProcessCores mine{.cores = static_cast<int>(usable_cores().size()), .cpus = static_cast<int>(affinity().size())};
  const Cgroups groups = cgroups_of(0, root);
  const std::size_t in_set = cpus_of(groups).size();
  mine.cpus_of_group =
      std::max(mine.cpus, in_set > 0 ? static_cast<int>(in_set) : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  mine.time_of_group = least_time(mine.cpus_of_group, groups);
  try {
    mine.cpus_of_parent = static_cast<int>(affinity(::getppid()).size());
  } catch (const SystemError&) {  // the parent is gone, or of another user
  }
  return mine;
}

}  // namespace dtrain::host
