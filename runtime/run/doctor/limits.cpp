// Limits on shared memory, open files and locked memory.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "doctor/checks.h"
#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/host/readings.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kTried = 16u << 20;
constexpr std::uint64_t kFewFiles = 1024;    // the default of distributions; many ranks need more
constexpr std::uint64_t kTooFewFiles = 256;  // for a rank with its libraries, loaders and connections
constexpr std::uint64_t kRaisedTo = 65'536;  // by raise_open_files()
constexpr double kSmallShm = 128.0 * 1024 * 1024;
// If GPUs have no peer access, NCCL takes 9.2 MiB of /dev/shm (4 MiB, and 5.2 MiB for its two protocols of low latency)
// for each neighbour of a rank and each of its channels: with 4 channels, a ring and a tree, 110 MiB.
constexpr double kShmOfGpu = 128.0 * 1024 * 1024;
constexpr std::uint64_t kLittleLocked = 64u << 20;

// "[never] always" -> "never"
std::string chosen(const std::string& text) {
  const auto open = text.find('[');
  const auto close = text.find(']', open == std::string::npos ? 0 : open);
  return close == std::string::npos || open == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
}

bool has_entries(const std::filesystem::path& folder) {
  std::error_code code;
  return std::filesystem::directory_iterator(folder, code) != std::filesystem::directory_iterator();
}

}  // namespace

Finding check_shared_memory(const std::filesystem::path& root) {
  const std::string name = "shared memory";
  try {
    SharedMemory::create("doctor", kTried);
  } catch (const SystemError& error) {
    return problem(name, error.what(),
                   "ranks of one host exchange gradients through it: give this container more memory, and allow "
                   "memfd_create");
  }
  std::string text = "memfd works";
  const auto memory = host::read_memory(root);
  const std::vector<MemoryLimit> limits = memory_limits(cgroups_of(0, root));
  const MemoryLimit* const limit = tightest(limits);
  if (limit && (!memory || limit->free() < memory->available)) {
    text += ", " + format_bytes(static_cast<double>(limit->free())) +
            " of memory available: " + describe_cgroup(limit->group) + " has a limit of " +
            format_bytes(static_cast<double>(limit->bytes)) + " (" + limit->file + ")";
  } else if (memory) {
    text += ", " + format_bytes(static_cast<double>(memory->available)) + " of memory available";
  }
  const auto huge = host::read_proc_file(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (huge && !chosen(*huge).empty()) text += ", huge pages for it: " + chosen(*huge);
  return ok(name, text);
}

std::optional<Finding> check_cpu_quota(const std::filesystem::path& root) {
  const std::vector<CpuQuota> quotas = cpu_quotas(cgroups_of(0, root));
  const auto least = std::min_element(quotas.begin(), quotas.end(),
                                      [](const CpuQuota& a, const CpuQuota& b) { return a.cpus < b.cpus; });
  if (least == quotas.end()) return std::nullopt;
  const std::string text =
      describe_cgroup(least->group) + " grants " + fmt::format("{:.3g}", least->cpus) + " CPUs' worth of time";
  if (least->cpus >= 1) return ok("CPU quota", text);
  return warning(
      "CPU quota", text + ": the kernel stops even a single thread that computes",
      "raise it to a CPU for each rank (docker run --cpus, a CPU limit of the container in Kubernetes, cpu.max)");
}

Finding check_dev_shm(int gpus, const std::filesystem::path& folder) {
  const std::string name = folder.string();
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    return warning(name, "is not there", "Open MPI and NCCL use it inside a host: mount a tmpfs there");
  }
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  const double size = static_cast<double>(info.f_blocks) * static_cast<double>(info.f_frsize);
  const double needed = gpus > 1 ? gpus * kShmOfGpu : kSmallShm;
  std::string text = format_bytes(free) + " of " + format_bytes(size) + " free";
  if (free >= needed) return ok(name, text);
  if (gpus > 1) {
    text += "; NCCL takes up to " + format_bytes(needed) + " among " + std::to_string(gpus) + " GPUs";
    return warning(name, text,
                   "docker run --gpus all --shm-size=1g --ulimit memlock=-1, or sudo mount -o remount,size=" +
                       std::to_string(static_cast<int>(std::max(1024.0, needed / 1048576))) + "m " + name);
  }
  return warning(name, text,
                 "Open MPI and NCCL use it inside a host (dtrain itself does not): docker run --shm-size=1g, or sudo "
                 "mount -o remount,size=1g " +
                     name);
}

Finding judge_open_files(std::uint64_t soft, std::uint64_t hard) {
  const std::uint64_t most = std::max(soft, std::min(hard, kRaisedTo));
  const std::string text = std::to_string(most) + " for a process" +
                           (most > soft ? ", once dtrain has raised it from " + std::to_string(soft) : "");
  if (most >= kFewFiles) return ok("open files", text);
  const std::string remedy = "raise it (hard limit " + std::to_string(hard) + ") in /etc/security/limits.conf";
  return most < kTooFewFiles ? problem("open files", text + ": too few for a rank", remedy)
                             : warning("open files", text + ": too few where there are many ranks", remedy);
}

Finding check_open_files() {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return judge_open_files(limit.rlim_cur, limit.rlim_max);
}

Finding judge_locked_memory(std::optional<std::uint64_t> bytes, bool matters) {
  const std::string name = "locked memory";
  if (!bytes) return ok(name, "no limit");
  const std::string text = format_bytes(static_cast<double>(*bytes)) + " for a process";
  if (!matters) return ok(name, text + "; only InfiniBand needs more");
  if (*bytes >= kLittleLocked) return ok(name, text);
  return warning(
      name, text + ": too little to pin buffers for InfiniBand",
      "ulimit -l unlimited, or memlock in /etc/security/limits.conf (LimitMEMLOCK for sshd and slurmd); in a "
      "container: docker run --ulimit memlock=-1");
}

Finding check_locked_memory(const std::filesystem::path& root) {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  return judge_locked_memory(unlimited ? std::nullopt : std::optional<std::uint64_t>(limit.rlim_cur),
                             has_entries(root / "sys/class/infiniband"));
}

}  // namespace dtrain::run
