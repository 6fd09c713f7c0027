// The states in memory of a run, as a rank finds them. Plain value.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/checkpoint/host_states.h"
#include "dtrain/checkpoint/memory_folder.h"

namespace dtrain::rank {

struct RunMemory {
  bool kept = false;                  // the same on all ranks
  std::filesystem::path folder;       // of this host (checkpoint/memory_folder.h), which its launcher or keeper holds
  int host = checkpoints::kNoKeeper;  // the number of this host, where each has a folder of its own
  std::string problem;  // on the first rank of a host: why the folder could not be made; empty: it is there

  // Of a run whose hosts have a folder each.
  checkpoints::Lineage lineage;  // of this attempt
  checkpoints::Lineage last;     // of the one before
  std::optional<checkpoints::ChosenState>
      begins_with;  // the state in memory from which the run goes on; empty: another
};

}  // namespace dtrain::rank
