// The checks of `dtrain doctor` that are about one host, each a function of its own. They look, measure for a fraction
// of a second, and leave nothing behind. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "doctor/finding.h"
#include "environment.h"
#include "gpus_seen.h"

namespace dtrain::run {

struct CheckedHost {
  std::filesystem::path folder;  // where runs are written; need not exist
  bool needs_mpi = false;        // launcher: mpi
  bool needs_slurm = false;      // launcher: slurm
  bool launches = true;          // `dtrain launch` is called here
};

// All of them, in the order in which they are printed.
std::vector<Finding> check_host(const CheckedHost& host, const std::optional<GpusSeen>& gpus,
                                const Variables& variables);

// What programs need.
Finding check_libtorch(const Variables& variables);
std::vector<Finding> check_gpus(const std::optional<GpusSeen>& seen);  // driver, devices, NCCL
Finding check_mpi(bool needed);
Finding check_slurm();

// Limits. `root` is where proc/ and sys/ are.
Finding check_shared_memory(const std::filesystem::path& root = "/");
Finding check_dev_shm(const std::filesystem::path& folder = "/dev/shm");
Finding check_open_files();
Finding judge_open_files(std::uint64_t soft, std::uint64_t hard);
Finding check_locked_memory(const std::filesystem::path& root = "/");
// Empty: no limit. `matters`: there are devices that pin memory.
Finding judge_locked_memory(std::optional<std::uint64_t> bytes, bool matters);

Finding check_interfaces();

// The folder of runs: space, and how fast it takes what is written. And whether the ledger's folder is on a local disk.
std::vector<Finding> check_folder(const std::filesystem::path& folder);
Finding check_state_folder(const Variables& variables);
// The folder itself, or the nearest one above it that exists.
std::filesystem::path existing_part(const std::filesystem::path& folder);

}  // namespace dtrain::run
