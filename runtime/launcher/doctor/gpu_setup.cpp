// Checks the setup of GPUs (modes, clocks, memory, other processes) and their connections (peer access, topology).
#include <algorithm>
#include <functional>
#include <map>

#include "doctor/gpu_checks.h"
#include "dtrain/base/text.h"

namespace dtrain::launcher {

std::string name_gpus(const std::vector<int>& indices) {
  return (indices.size() == 1 ? "GPU " : "GPUs ") + ranges_text(indices, ", ");
}

std::string list_gpus(const std::vector<int>& indices) {
  std::vector<std::string> parts;
  for (const int index : indices) parts.push_back(std::to_string(index));
  return join(parts, ",");
}

namespace {

using host::ComputeMode;
using host::GpuSetup;

// The findings on a machine's GPUs, and the checks whose facts no GPU reports.
class Setups {
 public:
  explicit Setups(const std::vector<GpuSetup>& gpus) : gpus_(gpus) {}

  const std::vector<GpuSetup>& gpus() const { return gpus_; }
  std::vector<int> where(const std::function<bool(const GpuSetup&)>& holds) const {
    std::vector<int> indices;
    for (const GpuSetup& gpu : gpus_) {
      if (holds(gpu)) indices.push_back(gpu.index);
    }
    return indices;
  }
  // Returns the GPUs that report `value` for `member`.
  template <typename Value>
  std::vector<int> with(std::optional<Value> GpuSetup::*member, Value value) const {
    return where([&](const GpuSetup& gpu) { return gpu.*member == value; });
  }
  // True if a GPU reports `member`; else the check is listed as not known.
  template <typename Value>
  bool known(const char* check, std::optional<Value> GpuSetup::*member) {
    const bool any =
        std::any_of(gpus_.begin(), gpus_.end(), [&](const GpuSetup& gpu) { return (gpu.*member).has_value(); });
    if (!any) unknown_.push_back(check);
    return any;
  }
  void add(Finding finding) { findings_.push_back(std::move(finding)); }
  std::vector<Finding> take() {
    if (!unknown_.empty()) add(ok("not known", join_with_and(unknown_) + ": the driver does not report it"));
    return std::move(findings_);
  }

 private:
  const std::vector<GpuSetup>& gpus_;
  std::vector<std::string> unknown_;
  std::vector<Finding> findings_;
};

void judge_persistence(Setups& setups) {
  const char* const check = "persistence";
  if (!setups.known(check, &GpuSetup::persistence)) return;
  const std::vector<int> off = setups.with(&GpuSetup::persistence, false);
  if (off.empty()) {
    setups.add(ok(check, "mode is on"));
  } else {
    setups.add(warning(check, "mode is off on " + name_gpus(off) + ": each start of a run waits for the driver",
                       "sudo nvidia-smi -pm 1 -i " + list_gpus(off)));
  }
}

void judge_compute_mode(Setups& setups) {
  const char* const check = "compute mode";
  if (!setups.known(check, &GpuSetup::compute_mode)) return;
  const std::vector<int> prohibited = setups.with(&GpuSetup::compute_mode, ComputeMode::kProhibited);
  const std::vector<int> exclusive = setups.where([](const GpuSetup& gpu) {
    return gpu.compute_mode == ComputeMode::kExclusiveProcess || gpu.compute_mode == ComputeMode::kExclusiveThread;
  });
  if (!prohibited.empty()) {
    setups.add(problem(check, name_gpus(prohibited) + " may not be used by any process",
                       "sudo nvidia-smi -c DEFAULT -i " + list_gpus(prohibited)));
  } else if (!exclusive.empty()) {
    setups.add(ok(check, name_gpus(exclusive) + " may be used by one process at a time, as a rank does"));
  } else {
    setups.add(ok(check, "processes may share GPUs"));
  }
}

void judge_mig(Setups& setups) {
  const char* const check = "MIG mode";
  if (!setups.known(check, &GpuSetup::mig)) return;
  const std::vector<int> on = setups.with(&GpuSetup::mig, true);
  if (on.empty()) {
    setups.add(ok(check, "is off"));
  } else {
    setups.add(warning(
        check, "is on on " + name_gpus(on) + ": a rank gets one part of such a GPU, without access to the others",
        "end what runs there, then: sudo nvidia-smi -mig 0 -i " + list_gpus(on)));
  }
}

void judge_ecc(Setups& setups) {
  const char* const check = "ECC";
  if (!setups.known(check, &GpuSetup::ecc)) return;
  const std::vector<int> off = setups.with(&GpuSetup::ecc, false);
  const std::vector<int> later =
      setups.where([](const GpuSetup& gpu) { return gpu.ecc == false && gpu.ecc_pending == true; });
  if (off.empty()) {
    setups.add(ok(check, "is on"));
  } else if (later == off) {
    setups.add(warning(check, "is off on " + name_gpus(off) + " until the next restart", "restart the host"));
  } else {
    setups.add(warning(check, "is off on " + name_gpus(off) + ": errors of its memory change weights unnoticed",
                       "sudo nvidia-smi -e 1 -i " + list_gpus(off) + ", then restart the host"));
  }
}

std::string clocks_now(const std::vector<GpuSetup>& gpus) {
  unsigned slowest = 0;
  unsigned fastest = 0;
  unsigned most = 0;
  for (const GpuSetup& gpu : gpus) {
    if (!gpu.sm_clock || !gpu.most_sm_clock) continue;
    slowest = slowest == 0 ? *gpu.sm_clock : std::min(slowest, *gpu.sm_clock);
    fastest = std::max(fastest, *gpu.sm_clock);
    most = std::max(most, *gpu.most_sm_clock);
  }
  return "now " + std::to_string(slowest) + (fastest > slowest ? " to " + std::to_string(fastest) : "") + " of " +
         std::to_string(most) + " MHz";
}

void judge_clocks(Setups& setups) {
  const char* const check = "clocks";
  const std::size_t before = setups.where([](const GpuSetup& gpu) { return gpu.slowdown.has_value(); }).size();
  if (before == 0 && !setups.known(check, &GpuSetup::sm_clock)) return;
  const auto slowed = [&](bool host::SlowdownReasons::*reason) {
    return setups.where([&](const GpuSetup& gpu) { return gpu.slowdown && *gpu.slowdown.*reason; });
  };
  const std::vector<int> heat = slowed(&host::SlowdownReasons::heat);
  const std::vector<int> brake = slowed(&host::SlowdownReasons::power_brake);
  // Idle GPUs also report a hardware slowdown, while their clocks change, so they are left out.
  const std::vector<int> hardware = setups.where([](const GpuSetup& gpu) {
    const auto& why = gpu.slowdown;
    return why && why->hardware && !why->idle && !why->heat && !why->power_brake;
  });
  const std::vector<int> lowered = setups.where([](const GpuSetup& gpu) {
    return gpu.application_clock && gpu.default_application_clock &&
           *gpu.application_clock < *gpu.default_application_clock;
  });
  if (!heat.empty()) {
    setups.add(warning(check, name_gpus(heat) + (heat.size() == 1 ? " is" : " are") + " slowed down by heat",
                       "see to fans and airflow; nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i " + list_gpus(heat)));
  }
  if (!brake.empty()) {
    setups.add(warning(check,
                       name_gpus(brake) + (brake.size() == 1 ? " is" : " are") + " slowed down by the power supply",
                       "see to power supplies and cables; nvidia-smi -q -d POWER,PERFORMANCE -i " + list_gpus(brake)));
  }
  if (!hardware.empty()) {
    setups.add(warning(
        check, name_gpus(hardware) + (hardware.size() == 1 ? " slows itself" : " slow themselves") + " down to half",
        "nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -i " + list_gpus(hardware)));
  }
  for (const int index : lowered) {
    const GpuSetup& gpu = *std::find_if(setups.gpus().begin(), setups.gpus().end(),
                                        [&](const GpuSetup& gpu) { return gpu.index == index; });
    setups.add(warning(check,
                       name_gpus({index}) + " is set to " + std::to_string(*gpu.application_clock) +
                           " MHz; its default is " + std::to_string(*gpu.default_application_clock),
                       "sudo nvidia-smi -rac -i " + std::to_string(index)));
  }
  if (!heat.empty() || !brake.empty() || !hardware.empty() || !lowered.empty()) return;
  const bool reported = std::any_of(setups.gpus().begin(), setups.gpus().end(),
                                    [](const GpuSetup& gpu) { return gpu.sm_clock && gpu.most_sm_clock; });
  const std::vector<int> idle = slowed(&host::SlowdownReasons::idle);
  std::string text = reported ? clocks_now(setups.gpus()) : "nothing lowers them";
  if (!idle.empty()) text += idle.size() == setups.gpus().size() ? ", idle" : "; " + name_gpus(idle) + " idle";
  setups.add(ok(check, text));
}

void judge_processes(Setups& setups) {
  const char* const check = "GPU processes";
  if (!setups.known(check, &GpuSetup::processes)) return;
  bool any = false;
  for (const GpuSetup& gpu : setups.gpus()) {
    if (!gpu.processes || gpu.processes->empty()) continue;
    any = true;
    std::vector<std::string> parts;
    std::vector<std::string> pids;
    for (const host::GpuProcess& process : *gpu.processes) {
      pids.push_back(std::to_string(process.pid));
      parts.push_back(pids.back() + (process.memory ? " (" + format_bytes(static_cast<double>(*process.memory)) + ")"
                                                    : std::string()));
    }
    setups.add(warning(check,
                       name_gpus({gpu.index}) + " is used by " + (parts.size() == 1 ? "process " : "processes ") +
                           join_with_and(parts) + ", which a rank would share it with",
                       "ps -o pid,user,etime,args -p " + join(pids, ",") +
                           " on the host says what they are; wait for their end, or list the other GPUs in "
                           "CUDA_VISIBLE_DEVICES"));
  }
  if (!any) setups.add(ok(check, "none"));
}

void judge_nvlinks(Setups& setups) {
  const char* const check = "NVLink";
  if (setups.where([](const GpuSetup& gpu) { return gpu.nvlinks.has_value(); }).empty()) return;  // most have none
  int most = 0;
  for (const GpuSetup& gpu : setups.gpus()) most = std::max(most, gpu.active_nvlinks.value_or(0));
  const std::vector<int> fewer = setups.where([&](const GpuSetup& gpu) {
    const int active = gpu.active_nvlinks.value_or(0);
    return active > 0 && active < most;
  });
  for (const int index : fewer) {
    const GpuSetup& gpu = *std::find_if(setups.gpus().begin(), setups.gpus().end(),
                                        [&](const GpuSetup& gpu) { return gpu.index == index; });
    setups.add(warning(check,
                       name_gpus({index}) + " has " + std::to_string(*gpu.active_nvlinks) + " active links, others " +
                           std::to_string(most),
                       "nvidia-smi nvlink --status -i " + std::to_string(index) +
                           " shows which are down; see to bridges or, with NVSwitch, to nvidia-fabricmanager"));
  }
  const std::vector<int> outside = setups.where([](const GpuSetup& gpu) {
    return gpu.fabric == host::FabricState::kNotStarted || gpu.fabric == host::FabricState::kInProgress;
  });
  if (!outside.empty()) {
    setups.add(warning(check, name_gpus(outside) + " cannot be used yet: not registered with the fabric manager",
                       "sudo systemctl start nvidia-fabricmanager; nvidia-smi -q -i " + list_gpus(outside) +
                           " shows the state under Fabric"));
  }
  if (!fewer.empty() || !outside.empty()) return;
  const GpuSetup& best = *std::max_element(
      setups.gpus().begin(), setups.gpus().end(),
      [](const GpuSetup& a, const GpuSetup& b) { return a.active_nvlinks.value_or(0) < b.active_nvlinks.value_or(0); });
  setups.add(ok(check, most == 0 ? "no link is active"
                                 : std::to_string(most) + " of " + std::to_string(*best.nvlinks) + " links active on " +
                                       name_gpus(setups.with(&GpuSetup::active_nvlinks, most))));
}

}  // namespace

std::vector<Finding> judge_setups(const host::GpuSetups& seen) {
  Setups setups(seen.gpus);
  judge_persistence(setups);
  judge_compute_mode(setups);
  judge_mig(setups);
  judge_ecc(setups);
  judge_clocks(setups);
  judge_processes(setups);
  judge_nvlinks(setups);
  return setups.take();
}

namespace {

using host::GpuPair;
using host::PeerAccess;

constexpr std::size_t kMostNamed = 6;  // pairs in a line; more are counted

using Pairs = std::vector<const GpuPair*>;

std::string name_pairs(const Pairs& pairs) {
  if (pairs.size() > kMostNamed) return std::to_string(pairs.size()) + " pairs";
  std::vector<std::string> names;
  for (const GpuPair* pair : pairs) names.push_back(std::to_string(pair->first) + "-" + std::to_string(pair->second));
  return join(names, ", ");
}

std::string pairs_without(const Pairs& pairs) {
  return pairs.size() > kMostNamed ? "none between " + name_pairs(pairs) + " of GPUs"
                                   : "none between GPUs " + name_pairs(pairs);
}

Finding judge_peers_without(PeerAccess why, const Pairs& pairs, bool iommu) {
  const std::string check = "peer access";
  const std::string text = pairs_without(pairs);
  const std::string slow = "; NCCL sends through the host's memory";
  const std::string virtualization =
      iommu ? "; the IOMMU is on, which can prevent it: turn IO virtualization (VT-d, AMD-Vi) off in the BIOS" : "";
  switch (why) {
    case PeerAccess::kGpu:
    case PeerAccess::kNo:
      return ok(check, text + ": GPUs of this kind have none" + slow);
    case PeerAccess::kChipset:
      return warning(check, text + ": the chipset does not support it" + slow,
                     "put the GPUs behind one PCIe switch, if there is one" + virtualization);
    case PeerAccess::kTopology:
      return warning(check, text + ": their slots do not allow it" + slow,
                     "put the GPUs behind one PCIe switch or root port, if there is one" + virtualization);
    case PeerAccess::kDisabled:
      return warning(check, text + ": an option of the driver disables it" + slow,
                     "grep -r NVreg /etc/modprobe.d shows the option; remove it and restart the host");
    case PeerAccess::kUnknown:
    case PeerAccess::kYes:
      break;
  }
  return warning(check, text + ", for a reason that the driver does not report" + slow,
                 "nvidia-smi topo -p2p r shows all pairs" + virtualization);
}

}  // namespace

std::vector<Finding> judge_pairs(const host::GpuSetups& setups, bool iommu) {
  std::map<PeerAccess, Pairs> access;
  std::map<std::string, Pairs> joined;
  std::size_t known = 0;
  for (const GpuPair& pair : setups.pairs) {
    if (pair.peer_access) {
      access[*pair.peer_access].push_back(&pair);
      ++known;
    }
    if (pair.nvlink.value_or(false)) {
      joined["NVLink"].push_back(&pair);
    } else if (pair.ancestor) {
      joined[host::to_string(*pair.ancestor)].push_back(&pair);
    }
  }
  std::vector<Finding> findings;
  if (access[PeerAccess::kYes].size() == known && known > 0) {
    findings.push_back(ok("peer access", known == 1 ? "between the two GPUs" : "between all GPUs"));
  }
  for (const auto& [why, pairs] : access) {
    if (why != PeerAccess::kYes && !pairs.empty()) findings.push_back(judge_peers_without(why, pairs, iommu));
  }
  std::vector<std::string> parts;
  for (const auto& [how, pairs] : joined) parts.push_back(how + ": " + name_pairs(pairs));
  if (!parts.empty()) findings.push_back(ok("topology", join(parts, "; ")));
  return findings;
}

}  // namespace dtrain::launcher
