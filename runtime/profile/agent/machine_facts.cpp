#include "agent/machine_facts.h"

#include "dtrain/host/cpu.h"
#include "dtrain/host/disks.h"
#include "dtrain/host/interfaces.h"
#include "dtrain/host/memory.h"

namespace dtrain::profile {

Json machine_facts(const std::filesystem::path& root) {
  Json facts = Json::object();
  const std::vector<int> cpus = host::allowed_cpus();
  facts["cpus"] = cpus;
  facts["physical_cores"] = host::physical_cores();
  // A limit, and not the CPUs this process happens to be bound to.
  if (const double limit = host::cpu_limit(root); limit < static_cast<double>(cpus.size())) facts["cpu_limit"] = limit;
  if (const auto instructions = host::cpu_instructions(root)) {
    facts["vector_bits"] = instructions->vector_bits;
    facts["bf16"] = instructions->bf16;
  }
  if (const auto memory = host::read_memory(root)) facts["total_memory"] = memory->total;
  Json disks = Json::array();
  for (const std::string& name : host::whole_disks(root)) {
    Json disk = {{"name", name}};
    if (const std::string kind = host::disk_kind(name, root); !kind.empty()) disk["kind"] = kind;
    disks.push_back(std::move(disk));
  }
  facts["disks"] = std::move(disks);
  Json interfaces = Json::array();
  for (const std::string& name : host::outside_interfaces(root)) {
    Json interface = {{"name", name}};
    if (const auto speed = host::link_speed(name, root)) interface["bits_per_s"] = *speed;
    interfaces.push_back(std::move(interface));
  }
  facts["interfaces"] = std::move(interfaces);
  return facts;
}

}  // namespace dtrain::profile
