#include "gpus_seen.h"

#include <future>
#include <thread>

namespace dtrain::run {

namespace {

template <typename Result>
std::optional<Result> within(std::chrono::seconds patience, std::packaged_task<Result()> task) {
  std::future<Result> answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace

std::optional<GpusSeen> look_at_gpus(std::chrono::seconds patience) {
  return within(patience, std::packaged_task<GpusSeen()>([] {
                  GpusSeen seen;
                  const host::Gpus gpus(host::kNvmlLibrary,
                                        [&](const std::string& text) { seen.warnings.push_back(text); });
                  seen.gpus = gpus.list();
                  return seen;
                }));
}

std::optional<host::GpuSetups> look_at_gpu_setups(std::chrono::seconds patience) {
  return within(patience, std::packaged_task<host::GpuSetups()>([] { return host::read_gpu_setups(); }));
}

}  // namespace dtrain::run
