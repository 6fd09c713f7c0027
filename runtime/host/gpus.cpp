#include "dtrain/host/gpus.h"

#include <algorithm>
#include <iterator>

#include "dtrain/base/text.h"
#include "nvml_session.h"

namespace dtrain::host {

struct Gpus::Nvml : NvmlSession {
  using NvmlSession::NvmlSession;
  std::vector<nvml::Device> devices;  // as in list()

  // Returns the problem of a GPU; empty: none. A value that the GPU does not support or report is no problem.
  std::string problem(nvml::Device device) const {
    unsigned corrected = 0;
    unsigned uncorrected = 0;
    unsigned pending = 0;
    unsigned failed = 0;
    if (remapped_rows.succeeds(device, &corrected, &uncorrected, &pending, &failed)) {
      if (failed != 0) return "rows of its memory could not be remapped: it needs repair";
      if (pending != 0) return "rows of its memory wait to be remapped: it needs a reset";
    }
    int pages = 0;
    if (pages_pending.succeeds(device, &pages) && pages != 0) {
      return "pages of its memory wait to be retired: it needs a reset";
    }
    unsigned long long errors = 0;
    if (ecc_errors.succeeds(device, nvml::kUncorrectedErrors, nvml::kSinceDriverStart, &errors) && errors != 0) {
      return count_of(errors, "memory error") + " that ECC could not correct";
    }
    return {};
  }

  // Adds the instances of a GPU in MIG mode.
  void find_instances(nvml::Device device, GpuInfo& info) const {
    int mode = 0;
    int pending = 0;
    if (!mig.succeeds(device, &mode, &pending) || mode == 0) return;
    unsigned most = 0;
    if (!most_instances.succeeds(device, &most)) most = 0;
    for (unsigned place = 0; place < most; ++place) {
      nvml::Device found = nullptr;
      if (!instance.succeeds(device, place, &found)) continue;  // there is none at this place
      nvml::Memory bytes{};
      if (!memory.succeeds(found, &bytes)) bytes = {};
      info.instances.push_back({text(uuid, found), text(name, found), info.index, bytes.total});
    }
    if (info.instances.empty() && info.problem.empty()) {
      info.problem =
          "it is in MIG mode and has no instance: sudo nvidia-smi mig -cgi PROFILE -C makes one, "
          "sudo nvidia-smi -mig 0 ends the mode";
    }
  }
};

Gpus::Gpus(const std::string& library, std::function<void(const std::string&)> warn)
    : warn_(std::move(warn)), nvml_(std::make_unique<Nvml>(library)) {
  if (!nvml_->opened()) return;
  if (!nvml_->complete()) {
    if (warn_) warn_(library + " lacks functions of NVML: no metrics of GPUs");
    return;
  }
  const int code = nvml_->start();
  if (code == nvml::kDriverNotLoaded || !succeeded(code, "NVML does not start")) return;
  find_gpus();
}

Gpus::~Gpus() = default;

void Gpus::find_gpus() {
  unsigned count = 0;
  if (!succeeded(nvml_->count(&count), "NVML does not count the GPUs")) return;
  for (unsigned index = 0; index < count; ++index) {
    nvml::Device device = nullptr;
    // NVML reports a GPU that this process may not use (in a container, for example) by an error.
    if (!succeeded(nvml_->handle(index, &device), "GPU " + std::to_string(index))) continue;
    GpuInfo info;
    info.index = static_cast<int>(index);
    info.uuid = NvmlSession::text(nvml_->uuid, device);
    info.name = NvmlSession::text(nvml_->name, device);
    nvml::PciInfo pci{};
    if (nvml_->pci.succeeds(device, &pci)) {
      info.pci_address.assign(std::begin(pci.address), std::find(std::begin(pci.address), std::end(pci.address), '\0'));
    }
    nvml::Memory memory{};
    if (nvml_->memory.succeeds(device, &memory)) info.total_memory = memory.total;
    unsigned degrees = 0;
    if (nvml_->temperature_threshold.succeeds(device, nvml::kSlowdownThreshold, &degrees)) {
      info.slowdown_temperature = degrees;
    }
    int major = 0;
    int minor = 0;
    if (nvml_->compute_capability.succeeds(device, &major, &minor)) {
      info.compute_capability = (10 * major + minor) / 10.0;
    }
    info.problem = nvml_->problem(device);
    nvml_->find_instances(device, info);
    list_.push_back(std::move(info));
    nvml_->devices.push_back(device);
  }
}

bool Gpus::succeeded(int code, const std::string& what) {
  if (code == nvml::kSuccess) return true;
  if (code == nvml::kNotSupported) return false;
  const std::string text = what + ": " + nvml_->text(code);
  if (warn_ && warned_.insert(text).second) warn_(text);
  return false;
}

std::vector<GpuReading> Gpus::read() {
  std::vector<GpuReading> readings;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const nvml::Device device = nvml_->devices[i];
    const std::string who = "GPU " + std::to_string(list_[i].index);
    GpuReading reading{.index = list_[i].index};
    nvml::Utilization utilization{};
    if (nvml_->utilization && succeeded(nvml_->utilization(device, &utilization), who + ", utilization")) {
      reading.util = utilization.gpu;
    }
    nvml::Memory memory{};
    if (nvml_->memory && succeeded(nvml_->memory(device, &memory), who + ", memory")) reading.free_memory = memory.free;
    unsigned degrees = 0;
    if (nvml_->temperature &&
        succeeded(nvml_->temperature(device, nvml::kTemperatureOfGpu, &degrees), who + ", temperature")) {
      reading.temperature = degrees;
    }
    unsigned long long reasons = 0;
    if (nvml_->slowdown && succeeded(nvml_->slowdown(device, &reasons), who + ", clocks")) {
      reading.slowed_by_heat = (reasons & nvml::kSlowedByHeat) != 0;
    }
    if (nvml_->processes) {
      std::vector<nvml::ProcessInfo> found;
      if (succeeded(nvml_->list_processes(device, found), who + ", processes")) {
        reading.processes.emplace();
        for (const nvml::ProcessInfo& info : found) reading.processes->push_back(static_cast<pid_t>(info.pid));
      }
    }
    readings.push_back(std::move(reading));
  }
  return readings;
}

namespace {

constexpr const char* kGpuPrefix = "GPU-";
constexpr const char* kMigPrefix = "MIG-";

// Returns a GPU, or the instances into which it is divided.
std::vector<VisibleGpu> visible(const GpuInfo& gpu) {
  if (gpu.instances.empty()) return {{gpu.uuid.empty() ? std::to_string(gpu.index) : gpu.uuid, gpu}};
  std::vector<VisibleGpu> instances;
  for (const MigInstance& instance : gpu.instances) instances.push_back({instance.uuid, std::nullopt, instance});
  return instances;
}

VisibleGpu instance_named(const std::string& name, const std::vector<GpuInfo>& all) {
  for (const GpuInfo& gpu : all) {
    const auto found = std::ranges::find(gpu.instances, name, &MigInstance::uuid);
    if (found != gpu.instances.end()) return {name, std::nullopt, *found};
  }
  return {name, std::nullopt};
}

// Returns what an entry names; empty: nothing.
std::vector<VisibleGpu> named_by(const std::string& entry, const std::vector<GpuInfo>& all) {
  if (entry.starts_with(kMigPrefix)) return {instance_named(entry, all)};
  if (entry.starts_with(kGpuPrefix)) {
    const auto matches = [&](const GpuInfo& gpu) { return gpu.uuid.starts_with(entry); };
    const auto found = std::find_if(all.begin(), all.end(), matches);
    if (found == all.end() || std::count_if(all.begin(), all.end(), matches) != 1) return {};
    return visible(*found);
  }
  const auto index = to_number<std::size_t>(entry);
  return index && *index < all.size() ? visible(all[*index]) : std::vector<VisibleGpu>();
}

}  // namespace

std::string VisibleGpu::name() const {
  return info ? info->name : instance ? instance->name : "MIG instance";
}

std::vector<VisibleGpu> visible_gpus(const std::vector<GpuInfo>& all,
                                     const std::optional<std::string>& visible_devices) {
  std::vector<VisibleGpu> result;
  if (!visible_devices) {
    for (const GpuInfo& gpu : all) {
      for (VisibleGpu& part : visible(gpu)) result.push_back(std::move(part));
    }
    return result;
  }
  std::set<std::string> known;
  for (const std::string& entry : split(*visible_devices, ',')) {
    std::vector<VisibleGpu> named = named_by(std::string(trimmed(entry, " \t")), all);
    if (named.empty()) break;
    for (VisibleGpu& gpu : named) {
      if (!known.insert(gpu.id).second) return {};
      result.push_back(std::move(gpu));
    }
  }
  return result;
}

bool is_order_unknown(const std::vector<GpuInfo>& all, const std::map<std::string, std::string>& variables) {
  const auto order = variables.find("CUDA_DEVICE_ORDER");
  if (order != variables.end() && order->second == "PCI_BUS_ID") return false;
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  if (visible != variables.end() &&
      (visible->second.starts_with(kGpuPrefix) || visible->second.starts_with(kMigPrefix))) {
    return false;
  }
  return std::any_of(all.begin(), all.end(), [&](const GpuInfo& gpu) { return gpu.name != all.front().name; });
}

}  // namespace dtrain::host
