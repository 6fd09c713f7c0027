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
constexpr const char* kExchange = "exchange";
constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

// The clocks of a MIG instance are those of its GPU.
profile::GpuKind kind_of(const host::VisibleGpu& gpu, const host::GpuSetups& setups) {
  const int index = gpu.info ? gpu.info->index : gpu.instance->gpu;
  profile::GpuKind kind{.name = gpu.name(), .driver = setups.driver, .application_clock = {}, .most_clock = {}};
  for (const host::GpuSetup& setup : setups.gpus) {
    if (setup.index != index) continue;
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

// Finds NCCL's figures between the GPUs of a kind, and adds them to its limits.
void find_exchange(const GpuOfKind& gpu, Measure measure, const std::filesystem::path& program,
                   const rank::Variables& variables, profile::GpuLimits& limits, HostGpuLimits& result) {
  const auto gpus = static_cast<int>(gpu.ids.size());
  const std::filesystem::path folder = rank::cache_folder(variables);
  const GpuLimitsCache cache(folder);
  if (measure != Measure::kAnew) limits.exchange = cache.find_exchange(gpu.kind, gpus);
  if (gpus < 2 || limits.exchange || measure == Measure::kNever) return;
  UniqueFd held;
  if (!folder.empty()) held = lock_machine(LimitsCache(folder).lock_file());
  if (measure == Measure::kIfUnknown) limits.exchange = cache.find_exchange(gpu.kind, gpus);  // measured meanwhile
  if (limits.exchange) return;
  const rank::Variables environment{{kVisibleDevices, join(gpu.ids, ",")}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
  const Json answer = run_calibration({"--gpus", std::to_string(gpus)}, environment, program, variables);
  result.seconds += answer.at("seconds").get<double>();
  limits.exchange = profile::gpu_exchange_of(answer.at(kExchange));
  if (!limits.exchange) return;
  result.measured.push_back("NCCL between " + std::to_string(gpus) + " GPUs");
  try {
    cache.store_exchange(gpu.kind, *limits.exchange);
  } catch (const Error& error) {
    add_failure(result.failure, "those of NCCL are not remembered: " + std::string(error.what()));
  }
}

Json exchange_key(const profile::GpuKind& kind, int gpus) {
  Json key = gpu_limits_key(kind);
  key["gpus"] = gpus;
  return key;
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
    if (!gpu.info && !gpu.instance) continue;
    const profile::GpuKind kind = kind_of(gpu, setups);
    auto found = std::ranges::find(kinds, kind, &GpuOfKind::kind);
    if (found == kinds.end()) found = kinds.insert(found, {gpu.id, kind, {}});
    if (gpu.info || found->ids.empty()) found->ids.push_back(gpu.id);
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

std::optional<profile::GpuExchange> GpuLimitsCache::find_exchange(const profile::GpuKind& kind, int gpus) const {
  const std::optional<Json> entry = files_.find(exchange_key(kind, gpus));
  if (!entry || !entry->contains(kExchange)) return std::nullopt;
  auto exchange = profile::gpu_exchange_of(entry->at(kExchange));
  return exchange && exchange->gpus == gpus ? exchange : std::nullopt;
}

void GpuLimitsCache::store_exchange(const profile::GpuKind& kind, const profile::GpuExchange& exchange) const {
  files_.store(exchange_key(kind, exchange.gpus), {{kExchange, profile::to_json(exchange)}});
}

void GpuLimitsCache::store(profile::GpuLimits limits) const {
  limits.exchange.reset();
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
  if (kinds.empty() && !ids.empty() && !never) result.failure = "NVML does not list them";
  for (const GpuOfKind& gpu : kinds) {
    try {
      find_limits(gpu, measure, program, variables, result);
    } catch (const std::exception& error) {
      add_failure(result.failure, error.what());
    }
    if (result.limits.empty() || result.limits.back().kind != gpu.kind) continue;
    try {
      find_exchange(gpu, measure, program, variables, result.limits.back(), result);
    } catch (const std::exception& error) {
      add_failure(result.failure, "NCCL between these GPUs was not measured: " + std::string(error.what()));
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
