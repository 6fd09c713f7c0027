// The duties of a launcher that a rank takes over where no launcher has started it: it finds the run of a task, knows
// the limits of its machine, and writes the report. They need the code of the launcher, of the scheduler and of
// analysis, which a rank does not load unless it comes to that: they are in a module, libdtrain_launcher_duties.so.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/profile/rank_limits.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::rank {

// The report that every run leaves in its folder when it is over.
struct EndReport {
  std::string text;     // for the screen: the report's path, or the way to get it; empty: nothing to report on
  std::string warning;  // for standard error: the reason why the report is missing
};

struct LauncherDuties {
  EndReport (*end_report)(const std::filesystem::path& run_dir) noexcept;
  std::string (*summary_text)(const std::filesystem::path& run_dir, int fd);
  // Returns the folder of the run of a task ("127"). ConfigError: there is no such task, or the folder is gone.
  RunFolder (*run_of_task)(const std::string& number);
  // Returns this host's remembered limits for ranks with so many threads; empty: none are remembered.
  std::optional<profile::RankLimits> (*known_limits)(int threads, int ranks, const Variables& variables);
  // Returns the remembered limits of the kinds of this host's GPUs with these ids (PlacedGpu::id()).
  std::vector<profile::GpuLimits> (*known_gpu_limits)(const std::vector<std::string>& gpus, const Variables& variables);
  // Returns the warning about parameters of rules that judge only GPUs; empty: all are at their defaults.
  std::string (*unused_rules_warning)(const config::Experiment& experiment);
};

// Opens the module at the first call. ConfigError: it cannot be opened.
const LauncherDuties& launcher_duties();

}  // namespace dtrain::rank
