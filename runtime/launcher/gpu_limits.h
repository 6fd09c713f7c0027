// Remembers the limits of kinds of GPUs from run to run, beside those of machines (machine_limits.h). A GPU of another
// kind, such as the same card with another driver or other clocks, is measured anew. Blocks for seconds; one thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/host/gpu_setup.h"
#include "dtrain/host/gpus.h"
#include "dtrain/profile/rank_limits.h"
#include "dtrain/rank/environment.h"
#include "machine_limits.h"

namespace dtrain::launcher {

// A GPU as CUDA_VISIBLE_DEVICES names it, its kind, and all GPUs of this kind, itself included.
struct GpuOfKind {
  std::string id;
  profile::GpuKind kind;
  std::vector<std::string> ids;
};

// Returns the first GPU of each kind among those with these ids. A MIG instance is a kind by its card and its profile;
// NCCL does not connect instances, so that it has no others. Empty `ids`: among all that are visible to this process.
std::vector<GpuOfKind> kinds_of_gpus(const std::vector<host::GpuInfo>& all, const host::GpuSetups& setups,
                                     const std::vector<std::string>& ids, const rank::Variables& variables);

// Returns everything on which a GPU's figures depend: its kind, and the versions of libtorch and dtrain.
Json gpu_limits_key(const profile::GpuKind& kind);

class GpuLimitsCache {
 public:
  // `folder`: the user's cache folder; empty: nothing is remembered.
  explicit GpuLimitsCache(const std::filesystem::path& folder) : files_(folder, "limits") {}

  std::filesystem::path file(const profile::GpuKind& kind) const { return files_.file(gpu_limits_key(kind)); }
  // Returns the limits of the kind. A file that is missing, damaged or of another kind counts as none.
  std::optional<profile::GpuLimits> find(const profile::GpuKind& kind) const;
  // SystemError: it cannot be written. NCCL's figures are left out: they have files of their own.
  void store(profile::GpuLimits limits) const;
  // The same for NCCL between so many GPUs of the kind.
  std::optional<profile::GpuExchange> find_exchange(const profile::GpuKind& kind, int gpus) const;
  void store_exchange(const profile::GpuKind& kind, const profile::GpuExchange& exchange) const;

 private:
  Remembered files_;
};

// The limits of the kinds of GPUs that a run uses on a host: remembered, or measured on one GPU of each kind, and NCCL
// between all of a kind.
struct HostGpuLimits {
  std::vector<profile::GpuLimits> limits;
  std::vector<std::string> measured;  // what was measured now: names of GPUs, NCCL between several
  double seconds = 0;                 // that measuring took
  std::string failure;                // the reason why limits are missing or not remembered; empty: nothing is wrong
};

// `ids` as in kinds_of_gpus(). `program`: of the ranks, whose libtorch is taken; empty: dtrain's own. Throws nothing
// that a run would have to end for: failures become `failure`.
HostGpuLimits gpu_limits(const std::vector<std::string>& ids, Measure measure, const std::filesystem::path& program,
                         const rank::Variables& variables);

Json to_json(const HostGpuLimits& limits);
HostGpuLimits host_gpu_limits_of(const Json& json);  // Json::exception if it is malformed

}  // namespace dtrain::launcher
