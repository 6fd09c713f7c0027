#include "gpus_seen.h"

#include <future>
#include <thread>

namespace dtrain::run {

std::optional<GpusSeen> look_at_gpus() {
  std::packaged_task<GpusSeen()> task([] {
    GpusSeen seen;
    const host::Gpus gpus(host::kNvmlLibrary, [&](const std::string& text) { seen.warnings.push_back(text); });
    seen.gpus = gpus.list();
    return seen;
  });
  std::future<GpusSeen> answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_for(kGpuPatience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace dtrain::run
