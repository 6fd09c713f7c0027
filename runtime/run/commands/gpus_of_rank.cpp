#include "commands/gpus_of_rank.h"

#include <algorithm>
#include <charconv>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/scheduler/gpu_slots.h"
#include "plan/gpu_placement.h"

namespace dtrain::run {
namespace {

[[noreturn]] void wrong(const std::string& assignment, int rank) {
  throw ConfigError("environment: DTRAIN_GPUS=" + assignment + " has no GPU for rank " + std::to_string(rank),
                    "only `dtrain launch` sets DTRAIN_GPUS; unset it");
}

struct HostAndGpu {
  std::string host;
  std::string gpu;
};

HostAndGpu parts_of(const std::string& entry, const std::string& assignment, int rank) {
  const auto colon = entry.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == entry.size()) wrong(assignment, rank);
  return {entry.substr(0, colon), entry.substr(colon + 1)};
}

// As CUDA_VISIBLE_DEVICES names it.
std::string id_of(const scheduler::ClusterSlot& slot) {
  return slot.gpu_uuid.empty() ? std::to_string(slot.gpu) : slot.gpu_uuid;
}

// Null: there is no such GPU.
const scheduler::ClusterSlot* find_gpu(const std::vector<scheduler::ClusterSlot>& slots, const std::string& name) {
  int place = 0;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), place);
  const bool is_place = code == std::errc() && end == name.data() + name.size();
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const scheduler::ClusterSlot& slot) {
    return slot.index >= 0 && (is_place ? slot.index == place : slot.gpu_uuid == name);
  });
  return found == slots.end() ? nullptr : &*found;
}

std::string texts_of(const std::vector<scheduler::ClusterSlot>& slots) {
  std::vector<std::string> texts;
  for (const scheduler::ClusterSlot& slot : slots) {
    texts.push_back(id_of(slot) + (slot.problem.empty() ? "" : " (" + slot.problem + ")"));
  }
  return texts.empty() ? "none" : join(texts, ", ");
}

}  // namespace

ShareOfRank gpus_of_rank(const std::vector<scheduler::ClusterSlot>& slots, const std::string& assignment, int rank,
                         const std::string& host) {
  const std::vector<std::string> entries = split(assignment, ',');
  if (static_cast<std::size_t>(rank) >= entries.size()) wrong(assignment, rank);
  const HostAndGpu mine = parts_of(entries[static_cast<std::size_t>(rank)], assignment, rank);
  std::vector<std::string> wanted;
  for (const std::string& entry : entries) {
    const HostAndGpu one = parts_of(entry, assignment, rank);
    if (one.host == mine.host) wanted.push_back(one.gpu);
  }
  const auto usable = std::count_if(slots.begin(), slots.end(), [](const auto& slot) { return slot.index >= 0; });
  if (usable == 1 && wanted.size() > 1) {
    const scheduler::ClusterSlot& only = slots.front();
    return {.cpus = {},
            .threads = 0,
            .variables = {{"CUDA_VISIBLE_DEVICES", id_of(only)}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}};
  }
  ShareOfRank share;
  std::vector<std::string> ids;
  for (const std::string& gpu : wanted) {
    const scheduler::ClusterSlot* const slot = find_gpu(slots, gpu);
    if (!slot) {
      throw ConfigError(
          "host " + host + ": the plan has " + std::to_string(wanted.size()) + " ranks on GPUs here, but GPU slot " +
              gpu + " does not exist; its GPUs: " + texts_of(slots),
          "`dtrain slot list` on that host shows its GPUs; the cluster file must not declare more of them");
    }
    ids.push_back(id_of(*slot));
    if (gpu != mine.gpu) continue;
    share.cpus = slot->cpus;
    share.threads = slot->threads;
  }
  share.variables = {{"CUDA_VISIBLE_DEVICES", join(ids, ",")}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
  return share;
}

ShareOfRank gpus_of_rank(const Variables& variables, int rank, const std::string& host) {
  const auto assignment = variables.find("DTRAIN_GPUS");
  if (assignment == variables.end()) wrong("", rank);
  std::vector<std::string> warnings;
  const auto slots = scheduler::find_gpu_slots(machine_with_gpus(), variables, warnings);
  if (slots.empty()) {
    throw ConfigError(
        "host " + host + ": the plan has ranks on GPUs here, but no GPU is visible" +
            (warnings.empty() ? ": NVIDIA's driver (NVML) reports none, or CUDA_VISIBLE_DEVICES hides them"
                              : ": " + join(warnings, "; ")),
        "`dtrain doctor` on that host checks GPUs and driver");
  }
  return gpus_of_rank(slots, assignment->second, rank, host);
}

}  // namespace dtrain::run
