#include "doctor/checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <variant>

#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/host/filesystem.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/host/readings.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::launcher {

namespace {

constexpr const char* kUnderText = "                            -> ";

Level level_of(const std::string& word) {
  if (word == to_string(Level::kProblem)) return Level::kProblem;
  return word == to_string(Level::kWarning) ? Level::kWarning : Level::kOk;
}

int count(std::span<const HostFindings> hosts, Level level) {
  int result = 0;
  for (const HostFindings& host : hosts) {
    result += static_cast<int>(std::count_if(host.findings.begin(), host.findings.end(),
                                             [&](const Finding& finding) { return finding.level == level; }));
  }
  return result;
}

}  // namespace

std::string to_string(Level level) {
  switch (level) {
    case Level::kProblem:
      return "problem";
    case Level::kWarning:
      return "warning";
    case Level::kOk:
      break;
  }
  return "ok";
}

Json to_json(std::span<const Finding> findings) {
  Json result = Json::array();
  for (const Finding& finding : findings) {
    result.push_back(Json{{"check", finding.check},
                          {"level", to_string(finding.level)},
                          {"text", finding.text},
                          {"remedy", finding.remedy}});
  }
  return result;
}

std::vector<Finding> findings_of(const Json& json) {
  std::vector<Finding> result;
  for (const Json& finding : json) {
    result.push_back({finding.at("check").get<std::string>(), level_of(finding.at("level").get<std::string>()),
                      finding.at("text").get<std::string>(), finding.at("remedy").get<std::string>()});
  }
  return result;
}

Level worst(std::span<const HostFindings> hosts) {
  if (count(hosts, Level::kProblem) > 0) return Level::kProblem;
  return count(hosts, Level::kWarning) > 0 ? Level::kWarning : Level::kOk;
}

Level worst_of(std::span<const HostFindings> hosts, const std::string& check) {
  Level result = Level::kOk;
  for (const HostFindings& host : hosts) {
    for (const Finding& finding : host.findings) {
      if (finding.check == check) result = std::max(result, finding.level);
    }
  }
  return result;
}

Json doctor_json(std::span<const HostFindings> hosts) {
  Json list = Json::array();
  for (const HostFindings& host : hosts) {
    list.push_back(Json{{"host", host.host}, {"findings", to_json(host.findings)}});
  }
  return {{"worst", to_string(worst(hosts))}, {"hosts", std::move(list)}};
}

std::string render(std::span<const HostFindings> hosts) {
  std::string text;
  for (const HostFindings& host : hosts) {
    text += host.host + "\n";
    for (const Finding& finding : host.findings) {
      char start[64];
      std::snprintf(start, sizeof start, "  %-8s  %-14s  ", to_string(finding.level).c_str(), finding.check.c_str());
      text += start + finding.text + "\n";
      if (!finding.remedy.empty()) text += kUnderText + finding.remedy + "\n";
    }
  }
  const int problems = count(hosts, Level::kProblem);
  const int warnings = count(hosts, Level::kWarning);
  if (problems + warnings == 0) return text + "all is well\n";
  return text + count_of(problems, "problem") + ", " + count_of(warnings, "warning") + "\n";
}

// Limits on shared memory, open files and locked memory.

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

// The folder of runs and the folder of the ledger.

namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr double kLittleSpace = 1024.0 * 1024 * 1024;
constexpr double kNoSpace = 64.0 * 1024 * 1024;
constexpr double kSlow = 20.0 * 1024 * 1024;  // bytes per second
constexpr std::size_t kChunk = 4u << 20;
constexpr std::size_t kMost = 64u << 20;
constexpr auto kLongest = std::chrono::milliseconds(500);

// Opens a file that has no name when this returns.
UniqueFd open_unnamed(const fs::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (fd || errno == EACCES || errno == EROFS || errno == ENOSPC) return fd;
  const fs::path file = folder / (".dtrain-doctor-" + random_hex(8));  // for file systems without O_TMPFILE
  fd.reset(::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  const int code = errno;
  ::unlink(file.c_str());
  errno = code;
  return fd;
}

Finding check_speed(const fs::path& folder, double free) {
  const UniqueFd fd = open_unnamed(folder);
  if (!fd) {
    return problem("disk speed", "cannot write into " + folder.string() + ": " + std::strerror(errno),
                   "give another folder with --run-dir, or make it writable");
  }
  const std::string chunk(kChunk, 'x');
  const auto start = SteadyClock::now();
  std::size_t written = 0;
  const auto limit = static_cast<std::size_t>(std::min(static_cast<double>(kMost), free / 4));
  while (written < limit && SteadyClock::now() - start < kLongest) {
    const ssize_t count = ::write(fd.get(), chunk.data(), std::min(kChunk, limit - written));
    if (count <= 0) {
      return problem("disk speed", "writing into " + folder.string() + " failed: " + std::strerror(errno),
                     "is it full, or its quota used up?");
    }
    written += static_cast<std::size_t>(count);
  }
  if (::fsync(fd.get()) != 0) {
    return problem("disk speed", "syncing a file in " + folder.string() + " failed: " + std::strerror(errno),
                   "the disk or the file server has errors: see the kernel's log");
  }
  const double seconds = to_seconds(SteadyClock::now() - start);
  if (written == 0) return ok("disk speed", "not measured: there is no space to write into");
  const double rate = static_cast<double>(written) / std::max(seconds, 1e-9);
  const std::string text = format_bytes(rate) + "/s written and synced";
  if (rate >= kSlow) return ok("disk speed", text);
  return warning("disk speed", text,
                 "records and weights are written there: choose a folder on a faster disk with --run-dir");
}

}  // namespace

fs::path existing_part(const fs::path& folder) {
  fs::path result = fs::absolute(folder).lexically_normal();
  std::error_code code;
  while (!fs::is_directory(result, code) && result.has_relative_path()) result = result.parent_path();
  return result;
}

std::vector<Finding> check_folder(const fs::path& folder) {
  const fs::path there = existing_part(folder);
  struct statvfs info {};
  if (::statvfs(there.c_str(), &info) != 0) {
    return {problem("disk space", there.string() + ": " + std::strerror(errno), "give another folder with --run-dir")};
  }
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  std::string text = format_bytes(free) + " free in " + there.string();
  if (const auto network = host::network_filesystem(there)) text += " (" + *network + ")";
  const std::string remedy = "make room there, or write runs elsewhere with --run-dir";
  const Finding space = free < kNoSpace       ? problem("disk space", text, remedy)
                        : free < kLittleSpace ? warning("disk space", text, remedy)
                                              : ok("disk space", text);
  return {space, check_speed(there, free)};
}

Finding check_state_folder(const rank::Variables& variables) {
  try {
    const fs::path folder = rank::state_folder(variables);
    const fs::path there = existing_part(folder);
    if (const auto network = host::network_filesystem(there)) {
      return problem("ledger", folder.string() + " is on a network file system (" + *network + ")",
                     "name a local folder in DTRAIN_STATE_DIR: on a network file system file locks do not work "
                     "between hosts");
    }
    if (::access(there.c_str(), W_OK) != 0) {
      return problem("ledger", there.string() + " cannot be written", "name another folder in DTRAIN_STATE_DIR");
    }
    return ok("ledger", "in " + folder.string());
  } catch (const Error& error) {
    return problem("ledger", error.what(), error.remedy());
  }
}

// The programs and libraries of a run: libtorch, those of the backends, Slurm. GPUs: gpus.cpp.

namespace {

Finding finding_of(const comm::BackendCheck& check, bool needed) {
  if (check.usable) return ok(check.name, check.text);
  if (needed) return problem(check.name, check.text, check.remedy);
  return ok(check.name, check.text + "; " + check.used_by + " need it");
}

}  // namespace

Finding check_libtorch(const rank::Variables& variables) {
  const fs::path worker = rank::find_training_program("dtrain-worker", variables);
  if (worker.empty()) {
    const rank::MissingProgram missing = rank::missing_program("dtrain-worker");
    return warning("libtorch", missing.text + "; `model:` experiments need it", missing.remedy);
  }
  try {
    const std::string path = rank::find_libraries(worker, variables);
    return ok("libtorch", path.empty() ? "found by " + worker.string() : split(path, ':').front());
  } catch (const Error& error) {
    return problem("libtorch", error.what(), error.remedy());
  }
}

std::vector<Finding> check_backends(bool mpi_is_needed, const rank::Variables& variables) {
  std::vector<Finding> findings;
  for (const comm::Backend& backend : comm::all_backends()) {
    std::visit(
        [&](const auto& held) {
          if constexpr (requires { held.check(variables); }) {
            findings.push_back(finding_of(held.check(variables), held.kNeedsMpi && mpi_is_needed));
          }
        },
        backend);
  }
  return findings;
}

Finding check_slurm(const rank::Variables& variables) {
  const auto path = variables.find("PATH");
  const fs::path srun = find_in_path("srun", path == variables.end() ? nullptr : &path->second);
  if (srun.empty()) {
    return problem("Slurm", "there is no srun in PATH", "launch from a node that has Slurm's commands");
  }
  const std::string said = first_output_line({srun.string(), "--version"});
  return said.empty() ? problem("Slurm", srun.string() + " fails", "srun --version says why") : ok("Slurm", said);
}

}  // namespace dtrain::launcher
