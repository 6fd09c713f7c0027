#include "dtrain/host/cpu.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "affinity.h"
#include "dtrain/base/cgroup.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {

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
  auto limit = static_cast<double>(affinity().size());
  for (const CpuQuota& quota : cpu_quotas(cgroups_of(0, root))) limit = std::min(limit, quota.cpus);
  return limit;
}

}  // namespace dtrain::host
