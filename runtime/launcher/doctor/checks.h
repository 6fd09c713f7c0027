// The checks of `dtrain doctor`, on one host and on the other hosts of a cluster, and their results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "machine_limits.h"
#include "network/network_choice.h"

namespace dtrain::launcher {

// The result of a check of `dtrain doctor`. Plain values; any thread.

enum class Level { kOk, kWarning, kProblem };
std::string to_string(Level level);  // "ok", "warning", "problem"

struct Finding {
  std::string check;  // the subject of the check: "open files"
  Level level = Level::kOk;
  std::string text;
  std::string remedy;  // what to do; empty if it is ok
};

inline Finding ok(std::string check, std::string text) {
  return {std::move(check), Level::kOk, std::move(text), {}};
}
inline Finding warning(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Level::kWarning, std::move(text), std::move(remedy)};
}
inline Finding problem(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Level::kProblem, std::move(text), std::move(remedy)};
}

struct HostFindings {
  std::string host;
  std::vector<Finding> findings;
};

Json to_json(std::span<const Finding> findings);
std::vector<Finding> findings_of(const Json& json);  // Json::exception if it is malformed

Level worst(std::span<const HostFindings> hosts);
// Returns the worst level of one check on all hosts.
Level worst_of(std::span<const HostFindings> hosts, const std::string& check);
Json doctor_json(std::span<const HostFindings> hosts);
std::string render(std::span<const HostFindings> hosts);

// The checks of `dtrain doctor` on one host, a function for each. They look, measure for a fraction of a second, and
// leave nothing behind. One thread.

struct CheckedHost {
  std::filesystem::path folder;  // for runs; may not exist yet
  bool needs_mpi = false;        // launcher: mpi
  bool needs_slurm = false;      // launcher: slurm
  bool launches = true;          // `dtrain launch` is called here
};

// Runs all checks, in the order in which they are printed.
std::vector<Finding> check_host(const CheckedHost& host, const std::optional<rank::GpusSeen>& gpus,
                                const rank::Variables& variables);

// Programs and libraries. GPUs: gpu_checks.h.
Finding check_libtorch(const rank::Variables& variables);
// Checks the backends' needs: a finding for each that looks for something. `mpi_is_needed`: the launcher is mpirun.
std::vector<Finding> check_backends(bool mpi_is_needed, const rank::Variables& variables);
Finding check_slurm(const rank::Variables& variables);

// Limits. `root` is the folder that contains proc/ and sys/.
Finding check_shared_memory(const std::filesystem::path& root = "/");
// Empty: no cgroup limits the processor time.
std::optional<Finding> check_cpu_quota(const std::filesystem::path& root = "/");
// `gpus`: the number of GPUs that exchange gradients through /dev/shm.
Finding check_dev_shm(int gpus = 0, const std::filesystem::path& folder = "/dev/shm");
Finding check_open_files();
Finding judge_open_files(std::uint64_t soft, std::uint64_t hard);
Finding check_locked_memory(const std::filesystem::path& root = "/");
// `bytes` is empty if there is no limit. `matters`: there are devices that pin memory.
Finding judge_locked_memory(std::optional<std::uint64_t> bytes, bool matters);

Finding check_interfaces();

// Lists the variables of process_interface.h that are set, and those of dtrain's name that no program reads.
std::vector<Finding> check_variables(const rank::Variables& variables);

// Checks the folder of runs: free space and write speed; and the ledger's folder: whether it is local and writable.
std::vector<Finding> check_folder(const std::filesystem::path& folder);
Finding check_state_folder(const rank::Variables& variables);
// Returns the folder itself, or the nearest folder above it that exists.
std::filesystem::path existing_part(const std::filesystem::path& folder);

// Checks on the other hosts of a cluster, over its remote shell: whether they can be reached, the
// results of their own checks, clocks, the run folder, and the network between them. One thread; takes seconds.

// The difference of another host's clock from this one's, and its uncertainty.
struct ClockOffset {
  Nanoseconds offset{0};
  Nanoseconds error{0};
};
// One reading of the other clock, between two of this one's. clock_offset() uses the reading that took the shortest.
struct ClockReading {
  Nanoseconds before;
  Nanoseconds theirs;
  Nanoseconds after;
};
ClockOffset clock_offset(const std::vector<ClockReading>& readings);
Finding judge_clock(const ClockOffset& clock);

// Returns one entry for each other host, also if several agents are on it. `folder`: the folder of runs.
std::vector<HostFindings> check_other_hosts(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote,
                                            const std::filesystem::path& folder);

// Returns a finding for each network between the hosts. Empty: this host is the only one and no interface is wanted.
std::vector<Finding> check_network(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote);

// `dtrain doctor --bench`: the limits of this machine, for people and for programs. Plain functions; one thread.

// Returns the ranks that fill this machine: one on each of its slots, or on each core if its slots are GPUs.
RanksOfHost ranks_to_bench(const std::optional<scheduler::ClusterAgents>& cluster);

// Returns a table for each setting, and for each kind of GPU; empty: nothing was measured.
std::string render_limits(std::span<const profile::RankLimits> limits);
std::string render_gpu_limits(std::span<const profile::GpuLimits> limits);

// Returns the cost of the default path of float32 matrix products, in percent of the fast path's rate; empty: not
// known, or there is only one path.
std::optional<double> matmul_cost(const profile::RankLimits& limits);

// Finds how this processor gets the fast path of float32 matrix products; none if libtorch takes it by itself.
std::optional<Finding> check_matmul(const rank::Variables& variables);
std::optional<Finding> judge_matmul(bool has_slow_path, std::span<const profile::RankLimits> known);

}  // namespace dtrain::launcher
