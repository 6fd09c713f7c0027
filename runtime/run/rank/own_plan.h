// plan.json of a run without a launcher. Plain function.
#pragma once

#include <filesystem>

#include "dtrain/base/log.h"
#include "rank/compare_ranks.h"
#include "rank/rank_identity.h"

namespace dtrain::run {

// Called on rank 0. Also logs the plan's warnings.
void write_own_plan(const std::filesystem::path& file, const RankIdentity& identity, const Assignment& assignment,
                    const RankHosts& hosts, const Logger& log);

}  // namespace dtrain::run
