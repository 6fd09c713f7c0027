#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoint {

std::filesystem::path storage_of_run(const std::filesystem::path& run_folder) {
  return run_folder / "checkpoints";
}

}  // namespace dtrain::checkpoint
