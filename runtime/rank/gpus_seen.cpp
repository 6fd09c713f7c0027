#include <future>

#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/rank/gpus_seen.h"

namespace dtrain::rank {

namespace {

template <typename Result>
std::optional<Result> within(std::chrono::seconds patience, std::packaged_task<Result()> task) {
  std::future<Result> answer = task.get_future();
  start_thread("the look at GPUs", std::move(task)).detach();
  if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

// Processes share a GPU through this server, also one that admits only one process: that process is the server.
bool is_mps_server(pid_t pid) {
  return host::read_proc_file("/proc/" + std::to_string(pid) + "/comm").value_or("").starts_with("nvidia-cuda-mps");
}

std::string text_of(const host::GpuProcess& process) {
  const std::string text = "process " + std::to_string(process.pid);
  return process.memory ? text + " (" + format_bytes(static_cast<double>(*process.memory)) + " of its memory)" : text;
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

GpuUse use_of_gpu(const host::GpuSetup& setup, const std::string& gpu, const std::set<pid_t>& own) {
  const std::string share_it =
      "nvidia-smi -i " + std::to_string(setup.index) + " -c DEFAULT (as root) lets processes share it";
  GpuUse use;
  if (setup.compute_mode == host::ComputeMode::kProhibited) {
    use.refusal = gpu + " admits no process: its compute mode is PROHIBITED";
    use.remedy = share_it;
    return use;
  }
  std::vector<std::string> others;
  for (const host::GpuProcess& process : setup.processes.value_or(std::vector<host::GpuProcess>())) {
    if (!own.contains(process.pid) && !is_mps_server(process.pid)) others.push_back(text_of(process));
  }
  if (others.empty()) return use;
  const std::string taken = gpu + " is in use by " + join_with_and(others);
  const bool exclusive = setup.compute_mode == host::ComputeMode::kExclusiveProcess ||
                         setup.compute_mode == host::ComputeMode::kExclusiveThread;
  if (exclusive) {
    use.refusal = taken + ", and admits only one process: its compute mode is EXCLUSIVE_PROCESS";
    use.remedy = "end that process, choose other GPUs with CUDA_VISIBLE_DEVICES, or: " + share_it;
  } else {
    use.warning = taken + ": the run shares its time and memory with that";
  }
  return use;
}

std::string gpus_text(const std::vector<host::VisibleGpu>& gpus) {
  if (gpus.empty()) return {};
  std::vector<std::string> names;
  for (const host::VisibleGpu& gpu : gpus) names.push_back(gpu.info || gpu.instance ? gpu.name() : gpu.id);
  return count_of(names.size(), "GPU") + " (" + join(names, ", ") + ")";
}

std::string find_unused_gpus(const config::Experiment& experiment, const Variables& variables) {
  if (experiment.resources.slot_type == config::SlotType::kCpu) return {};
  const auto seen = look_at_gpus();
  if (!seen) return {};
  const auto value = variables.find("CUDA_VISIBLE_DEVICES");
  return gpus_text(
      host::visible_gpus(seen->gpus, value == variables.end() ? std::nullopt : std::optional(value->second)));
}

std::string unused_gpus_warning(const std::string& gpus, const std::string& why) {
  return "this machine has " + gpus + ", which are not used: " + why +
         "; resources.slot_type: cpu says that this is meant";
}

}  // namespace dtrain::rank
