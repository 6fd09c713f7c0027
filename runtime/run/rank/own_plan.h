// What a rank writes into plan.json: all of it without a launcher, with one what the launcher cannot know. Plain
// functions.
#pragma once

#include <filesystem>

#include "dtrain/base/log.h"
#include "dtrain/run/run_folder.h"
#include "rank/compare_ranks.h"
#include "rank/rank_identity.h"

namespace dtrain::run {

// Called on rank 0. Also logs the plan's warnings.
void write_own_plan(const RunFolder& folder, const RankIdentity& identity, const Assignment& assignment,
                    const RankHosts& hosts, const RankGpus& gpus, const Logger& log);

// Called on rank 0 of a launched run: adds the GPUs that the launcher could not know, those of other hosts.
void name_gpus_in_plan(const std::filesystem::path& file, const RankGpus& gpus);

}  // namespace dtrain::run
