#include "keeper/node_memory.h"

#include <cstdio>

#include "dtrain/base/error.h"
#include "dtrain/rank/checkpoint_folder.h"

namespace dtrain::launcher {

void NodeMemory::hold(const std::filesystem::path& run_dir) {
  if (keeps_ && !folder_ && !run_dir.empty()) folder_.emplace(run_dir, host_);
}

std::int64_t NodeMemory::newest(const std::filesystem::path& run_dir) const {
  return checkpoints::newest_batch_in_memory(run_dir, host_);
}

std::optional<std::filesystem::path> NodeMemory::save(const std::filesystem::path& run_dir) const {
  if (!folder_) return std::nullopt;
  try {
    return checkpoints::save_newest_in_memory(run_dir, rank::find_checkpoint_folder({run_dir}), host_);
  } catch (const Error& error) {
    std::fprintf(stderr, "dtrain: warning: the last state in memory cannot be written to the disk: %s\n",
                 describe(error).c_str());
    return std::nullopt;
  }
}

}  // namespace dtrain::launcher
