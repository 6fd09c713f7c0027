#include "dtrain/host/visible_gpus.h"

#include <algorithm>
#include <set>

#include "dtrain/base/text.h"

namespace dtrain::host {
namespace {

constexpr const char* kGpuPrefix = "GPU-";
constexpr const char* kMigPrefix = "MIG-";

VisibleGpu visible(const GpuInfo& gpu) {
  return {gpu.uuid.empty() ? std::to_string(gpu.index) : gpu.uuid, gpu};
}

// Returns the GPU that an entry names; empty: it names none.
std::optional<VisibleGpu> named_by(const std::string& entry, const std::vector<GpuInfo>& all) {
  if (entry.starts_with(kMigPrefix)) return VisibleGpu{entry, std::nullopt};
  if (entry.starts_with(kGpuPrefix)) {
    const auto matches = [&](const GpuInfo& gpu) { return gpu.uuid.starts_with(entry); };
    const auto found = std::find_if(all.begin(), all.end(), matches);
    if (found == all.end() || std::count_if(all.begin(), all.end(), matches) != 1) return std::nullopt;
    return visible(*found);
  }
  const auto index = to_number<std::size_t>(entry);
  return index && *index < all.size() ? std::optional(visible(all[*index])) : std::nullopt;
}

}  // namespace

std::vector<VisibleGpu> visible_gpus(const std::vector<GpuInfo>& all,
                                     const std::optional<std::string>& visible_devices) {
  std::vector<VisibleGpu> result;
  if (!visible_devices) {
    for (const GpuInfo& gpu : all) result.push_back(visible(gpu));
    return result;
  }
  std::set<std::string> known;
  for (const std::string& entry : split(*visible_devices, ',')) {
    auto gpu = named_by(std::string(trimmed(entry, " \t")), all);
    if (!gpu) break;
    if (!known.insert(gpu->id).second) return {};
    result.push_back(std::move(*gpu));
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
