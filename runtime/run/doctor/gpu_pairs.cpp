// How GPUs are joined: peer access and topology.
#include <map>

#include "doctor/gpu_checks.h"
#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

using host::GpuPair;
using host::PeerAccess;

constexpr std::size_t kMostNamed = 6;  // pairs in a line; more are counted

using Pairs = std::vector<const GpuPair*>;

std::string name_pairs(const Pairs& pairs) {
  if (pairs.size() > kMostNamed) return std::to_string(pairs.size()) + " pairs";
  std::vector<std::string> names;
  for (const GpuPair* one : pairs) names.push_back(std::to_string(one->first) + "-" + std::to_string(one->second));
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
  for (const GpuPair& one : setups.pairs) {
    if (one.peer_access) {
      access[*one.peer_access].push_back(&one);
      ++known;
    }
    if (one.nvlink.value_or(false)) {
      joined["NVLink"].push_back(&one);
    } else if (one.ancestor) {
      joined[host::to_string(*one.ancestor)].push_back(&one);
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

}  // namespace dtrain::run
