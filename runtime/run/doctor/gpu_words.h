// How the checks of GPUs name GPUs. Plain functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace dtrain::run {

// "GPU 3", "GPUs 0-3, 6"; indices in ascending order.
std::string name_gpus(const std::vector<int>& indices);
// "0", "0,1,2": as nvidia-smi -i takes them.
std::string list_gpus(const std::vector<int>& indices);

}  // namespace dtrain::run
