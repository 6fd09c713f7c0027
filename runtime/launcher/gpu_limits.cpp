#include "gpu_limits.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::launcher {
namespace {

constexpr const char* kGpuLimits = "gpu_limits";
constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

profile::GpuKind kind_of(const host::GpuInfo& gpu, const host::GpuSetups& setups) {
  profile::GpuKind kind{.name = gpu.name, .driver = setups.driver, .application_clock = {}, .most_clock = {}};
  for (const host::GpuSetup& setup : setups.gpus) {
    if (setup.index != gpu.index) continue;
    kind.application_clock = setup.application_clock;
    kind.most_clock = setup.most_sm_clock;
  }
  return kind;
}

// Measures a GPU while the caller holds the lock. Error: as run_calibration().
profile::GpuLimits measure_gpu(const GpuOfKind& gpu, const std::filesystem::path& program,
                               const rank::Variables& variables, double& seconds) {
  const rank::Variables environment{{kVisibleDevices, gpu.id}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
  const Json answer = run_calibration({"--gpu", "0"}, environment, program, variables);
  seconds += answer.at("seconds").get<double>();
  profile::GpuLimits limits = profile::gpu_limits_of(answer.at(kGpuLimits));
  limits.kind = gpu.kind;
  return limits;
}

void add_failure(std::string& failures, const std::string& failure) {
  failures += (failures.empty() ? "" : "; ") + failure;
}

// Finds the limits of one kind, and adds them to `result`.
void find_limits(const GpuOfKind& gpu, Measure measure, const std::filesystem::path& program,
                 const rank::Variables& variables, HostGpuLimits& result) {
  const std::filesystem::path folder = rank::cache_folder(variables);
  const GpuLimitsCache cache(folder);
  if (measure != Measure::kAnew) {
    if (auto known = cache.find(gpu.kind)) return result.limits.push_back(*std::move(known));
    if (measure == Measure::kNever) return;
    if (folder.empty()) throw Error("there is no folder to remember them in: HOME is not set");
  }
  UniqueFd held;
  if (!folder.empty()) held = lock_machine(LimitsCache(folder).lock_file());
  if (measure == Measure::kIfUnknown) {  // the process that held the lock may have measured just this
    if (auto known = cache.find(gpu.kind)) return result.limits.push_back(*std::move(known));
  }
  result.limits.push_back(measure_gpu(gpu, program, variables, result.seconds));
  result.measured.push_back(gpu.kind.name);
  try {
    cache.store(result.limits.back());
  } catch (const Error& error) {
    add_failure(result.failure, "they are not remembered: " + std::string(error.what()));
  }
}

}  // namespace

std::vector<GpuOfKind> kinds_of_gpus(const std::vector<host::GpuInfo>& all, const host::GpuSetups& setups,
                                     const std::vector<std::string>& ids, const rank::Variables& variables) {
  const std::string* const visible = rank::find(variables, kVisibleDevices);
  const std::vector<host::VisibleGpu> gpus =
      ids.empty() ? host::visible_gpus(all, visible ? std::optional(*visible) : std::nullopt)
                  : host::visible_gpus(all, join(ids, ","));
  std::vector<GpuOfKind> kinds;
  for (const host::VisibleGpu& gpu : gpus) {
    if (!gpu.info) continue;
    GpuOfKind found{gpu.id, kind_of(*gpu.info, setups)};
    const bool known =
        std::any_of(kinds.begin(), kinds.end(), [&](const GpuOfKind& other) { return other.kind == found.kind; });
    if (!known) kinds.push_back(std::move(found));
  }
  return kinds;
}

Json gpu_limits_key(const profile::GpuKind& kind) {
  static const std::string libtorch = rank::libtorch_minor(rank::process_variables());  // read once: takes some 50 ms
  Json key = profile::to_json(kind);
  key["libtorch"] = libtorch;
  key["dtrain"] = rank::version();
  return key;
}

std::optional<profile::GpuLimits> GpuLimitsCache::find(const profile::GpuKind& kind) const {
  const std::optional<Json> entry = files_.find(gpu_limits_key(kind));
  if (!entry || !entry->contains(kGpuLimits)) return std::nullopt;
  profile::GpuLimits limits = profile::gpu_limits_of(entry->at(kGpuLimits));
  // Every measurement has this figure: without it, the file is damaged.
  if (limits.kind != kind || !limits.memory_copy_gb_s) return std::nullopt;
  return limits;
}

void GpuLimitsCache::store(const profile::GpuLimits& limits) const {
  files_.store(gpu_limits_key(limits.kind), {{kGpuLimits, profile::to_json(limits)}});
}

HostGpuLimits gpu_limits(const std::vector<std::string>& ids, Measure measure, const std::filesystem::path& program,
                         const rank::Variables& variables) {
  const bool never = measure == Measure::kNever;
  const auto patience = never ? rank::kGpuPatience : rank::kGpuPatienceOfRuns;
  HostGpuLimits result;
  const auto seen = rank::look_at_gpus(patience);
  const auto setups = seen ? rank::look_at_gpu_setups(patience) : std::nullopt;
  if (!setups) {
    if (!never) result.failure = "the driver does not answer";
    return result;
  }
  const std::vector<GpuOfKind> kinds = kinds_of_gpus(seen->gpus, *setups, ids, variables);
  if (kinds.empty() && !ids.empty() && !never)
    result.failure = "they are parts of GPUs (MIG), or NVML does not list them";
  for (const GpuOfKind& gpu : kinds) {
    try {
      find_limits(gpu, measure, program, variables, result);
    } catch (const std::exception& error) {
      add_failure(result.failure, error.what());
    }
  }
  return result;
}

Json to_json(const HostGpuLimits& limits) {
  Json kinds = Json::array();
  for (const profile::GpuLimits& kind : limits.limits) kinds.push_back(profile::to_json(kind));
  return {{"limits", std::move(kinds)},
          {"measured", limits.measured},
          {"seconds", limits.seconds},
          {"failure", limits.failure}};
}

HostGpuLimits host_gpu_limits_of(const Json& json) {
  HostGpuLimits result{.limits = {},
                       .measured = json.at("measured").get<std::vector<std::string>>(),
                       .seconds = json.at("seconds").get<double>(),
                       .failure = json.at("failure").get<std::string>()};
  for (const Json& kind : json.at("limits")) result.limits.push_back(profile::gpu_limits_of(kind));
  return result;
}

}  // namespace dtrain::launcher
