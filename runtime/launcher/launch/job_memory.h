// The states in memory of a run whose ranks mpirun or srun starts, from the side of the launcher. The first rank of
// each host makes the host's folder, which outlives the ranks of an attempt; those of the next one find together where
// they go on, and rank 0 tells the launcher. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/rank/launcher_link.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

class JobMemory {
 public:
  // True if such a run may need the states: its ranks are started again.
  static bool is_for(const PlacedLaunch& placed, const rank::Variables& variables);
  // `placed`: where the run begins. Its plan before tells of the attempts of a launcher that was killed.
  JobMemory(const std::filesystem::path& run, const PlacedLaunch& placed);

  // Before each attempt: adds to the orders what its ranks need.
  void add_to(rank::LaunchOrders& orders, const PlacedLaunch& placed);
  // Takes what rank 0 tells (memory_choice_message()). Returns the batches after which the attempt has begun.
  std::int64_t take(const Json& told);

  // The batch of the newest whole state that the launcher knows of; 0: it knows of none.
  std::int64_t newest() const;
  // The folder of this host; null: it has no rank, or the folder could not be made.
  checkpoints::MemoryFolder* here() { return here_ ? &*here_ : nullptr; }
  int number_here() const { return number_here_; }
  // The folders of the other hosts.
  std::vector<std::string> elsewhere() const;

 private:
  const std::filesystem::path run_;
  checkpoints::Lineage last_;
  std::int64_t began_at_ = 0;
  int hosts_ = 0;
  int number_here_ = checkpoints::kNoKeeper;
  std::optional<checkpoints::MemoryFolder> here_;
};

}  // namespace dtrain::launcher
