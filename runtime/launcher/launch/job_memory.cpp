#include "launch/job_memory.h"

#include <algorithm>

#include "commands/job_command.h"
#include "dtrain/config/experiment.h"

namespace dtrain::launcher {

bool JobMemory::is_for(const PlacedLaunch& placed, const rank::Variables& variables) {
  const bool local = placed.launcher().type == config::LauncherType::kLocal;
  const bool restarts = placed.experiment.max_restarts > 0 && !placed.asked.is_trial && !placed.asked.mock.any();
  return !local && !needs_allocation(placed, variables) && restarts && placed.experiment.recovery.keeps_states();
}

JobMemory::JobMemory(const std::filesystem::path& run, const PlacedLaunch& placed)
    : run_(run), last_(checkpoints::lineage_of(object_at(placed.of_run.before, "plan").value("lineage", Json()))) {}

void JobMemory::add_to(rank::LaunchOrders& orders, const PlacedLaunch& placed) {
  orders.keeps_states = true;
  orders.lineage = last_;
  int number = checkpoints::kNoKeeper;
  for (const rank::RankPlacement& rank : placed.ranks) {
    const int host = orders.host_of(rank.rank);
    hosts_ = std::max(hosts_, host + 1);
    if (rank.host == placed.host) number = host;
  }
  if (number == number_here_) return;
  here_.reset();
  number_here_ = number;
  if (number == checkpoints::kNoKeeper) return;
  here_.emplace(run_, number);
  if (!here_->problem().empty()) here_.reset();  // the rank here tells of it
}

std::int64_t JobMemory::take(const Json& told) {
  last_ = checkpoints::lineage_of(told.value("lineage", Json()));
  return began_at_ = told.value("step", std::int64_t{0});
}

std::int64_t JobMemory::newest() const {
  const auto state = here_ ? checkpoints::newest_in_memory(run_, number_here_) : std::nullopt;
  return std::max(began_at_, state ? state->about.step : 0);
}

std::vector<std::string> JobMemory::elsewhere() const {
  std::vector<std::string> folders;
  for (int host = 0; host < hosts_; ++host) {
    if (host != number_here_) folders.push_back(checkpoints::memory_folder_of(run_, host).string());
  }
  return folders;
}

}  // namespace dtrain::launcher
