#include <iterator>

#include "doctor/bench.h"
#include "doctor/checks.h"
#include "doctor/gpu_checks.h"
#include "dtrain/base/text.h"
#include "dtrain/host/interfaces.h"

namespace dtrain::run {
namespace {

void append(std::vector<Finding>& all, std::vector<Finding> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Finding check_interfaces() {
  std::vector<std::string> parts;
  for (const host::InterfaceAddress& one : host::interface_addresses()) {
    if (one.loopback || !host::is_for_others(one)) continue;
    std::string text = one.interface + " " + one.address + "/" + std::to_string(one.prefix);
    if (const auto speed = host::link_speed(one.interface)) {
      text += " (reports " + std::to_string(*speed / 1'000'000) + " Mbit/s)";
    }
    parts.push_back(std::move(text));
  }
  if (parts.empty()) {
    return warning("interfaces", "no address but loopback", "ranks on several hosts need an interface that is up");
  }
  return ok("interfaces", join(parts, ", "));
}

std::vector<Finding> check_host(const CheckedHost& host, const std::optional<GpusSeen>& gpus,
                                const Variables& variables) {
  std::vector<Finding> result{check_libtorch(variables)};
  if (const auto finding = check_matmul(variables)) result.push_back(*finding);
  append(result, check_gpus(gpus, variables));
  append(result, check_backends(host.needs_mpi, variables));
  if (host.needs_slurm) result.push_back(check_slurm(variables));
  result.push_back(check_shared_memory());
  result.push_back(check_dev_shm(gpus ? static_cast<int>(gpus->gpus.size()) : 0));
  result.push_back(check_open_files());
  result.push_back(check_locked_memory());
  result.push_back(check_interfaces());
  append(result, check_folder(host.folder));
  if (host.launches) result.push_back(check_state_folder(variables));
  return result;
}

}  // namespace dtrain::run
