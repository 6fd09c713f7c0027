#include "dtrain/config/cluster.h"

#include <algorithm>
#include <array>

#include <arpa/inet.h>

#include "document/document.h"
#include "document/section.h"
#include "document/value.h"
#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kLongestId = 64;

bool is_id(const std::string& text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !text.empty() && text.size() <= kLongestId && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), allowed);
}

// True for a host's name or address: nothing that mpirun, srun or ssh would take for an option or several words.
bool is_host(const std::string& text) {
  const auto allowed = [](char c) { return static_cast<unsigned char>(c) > 0x20 && c != 0x7F && c != ',' && c != '/'; };
  return !text.empty() && text.size() <= 255 && text[0] != '-' && std::all_of(text.begin(), text.end(), allowed);
}

void read_names(Section& section, Agent& agent) {
  if (const Value* id = section.find("id")) {
    agent.id = section.text("id", "");
    if (id->is_scalar() && !is_id(agent.id)) {
      section.report(
          *id, "id",
          "must be 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.' or '-', not " + describe(*id));
    }
  } else {
    section.report_missing("id", "a name for this agent, which no other has");
  }
  agent.host = section.text("host", agent.id);
  const Value* host = section.find("host");
  if (host && host->is_scalar() && !is_host(agent.host))
    section.report(*host, "host", "must be the name or the address of a machine, not " + describe(*host));
  agent.resource_pool = section.text("resource_pool", "default");
  const Value* pool = section.find("resource_pool");
  if (pool && pool->is_scalar() && agent.resource_pool.empty())
    section.report(*pool, "resource_pool", "must be a name, not " + describe(*pool));
}

Agent read_agent(Section section) {
  Agent agent;
  read_names(section, agent);
  if (!section.find("slots")) section.report_missing("slots", "how many ranks it holds, a whole number");
  agent.slots = static_cast<int>(section.integer("slots", 1, 1, 65536));
  const std::array<std::string, 3> types{"auto", "cuda", "cpu"};
  const std::string type = section.choice("slot_type", "auto", types);
  if (type != "auto") agent.slot_type = type == "cuda" ? AgentSlotType::kCuda : AgentSlotType::kCpu;
  section.finish();
  return agent;
}

void read_agents(Section& root, Cluster& cluster) {
  const std::string key = "agents";
  const Value* value = root.find(key);
  if (!value) return;
  if (value->kind != Value::Kind::kList) {
    return root.report(*value, key, "must be a list of agents, [{id: a, slots: 8}], not " + describe(*value));
  }
  if (value->items.empty()) root.report(*value, key, "names no agent; leave the key out to use this machine alone");
  for (std::size_t i = 0; i < value->items.size(); ++i) {
    const Value& item = value->items[i];
    const std::string path = key + "[" + std::to_string(i) + "]";
    if (!item.is_map()) {
      root.report(item, path, "must be a mapping of keys to values, not " + describe(item));
      continue;
    }
    Agent agent = read_agent(Section(&item, path, item.at, root.collector()));
    const auto same = [&](const Agent& other) { return !agent.id.empty() && other.id == agent.id; };
    if (std::any_of(cluster.agents.begin(), cluster.agents.end(), same))
      root.report(item.find("id")->value, path + ".id", "is the id of an earlier agent: " + quote(agent.id));
    cluster.agents.push_back(std::move(agent));
  }
}

// True if the kernel lets an interface have this name.
bool is_interface(const std::string& text) {
  constexpr std::size_t kLongest = 15;
  return !text.empty() && text.size() <= kLongest && text != "." && text != ".." &&
         std::ranges::none_of(
             text, [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == ':' || c == '/' || c == 0x7F; });
}

// "10.0.0.0/8", "fd00::/8"
bool is_address_range(const std::string& text) {
  const auto slash = text.find('/');
  const std::string address = text.substr(0, slash);
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const bool v4 = inet_pton(AF_INET, address.c_str(), bytes.data()) == 1;
  if (!v4 && inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1) return false;
  const std::string digits = text.substr(slash + 1);
  if (digits.starts_with('-') || (digits.size() > 1 && digits[0] == '0')) return false;
  const int bits = to_number<int>(digits).value_or(-1);
  return bits >= 0 && bits <= (v4 ? 32 : 128);
}

void read_network(Section section, Cluster& cluster) {
  const std::string key = "dtrain_network_interface";
  cluster.network_interface = section.text(key, "auto");
  const Value* value = section.find(key);
  if (value && value->is_scalar()) {
    const std::string& text = value->text;
    const bool range = text.find('/') != std::string::npos;
    if (range ? !is_address_range(text) : !is_interface(text)) {
      section.report(
          *value, key,
          "must be auto, the name of an interface (eth0) or an address range (10.0.0.0/8), not " + describe(*value));
    }
  }
  section.finish();
}

LauncherType read_launcher_type(Section& section, const std::string& key) {
  const std::array<std::string, 3> types{"local", "mpi", "slurm"};
  const std::string type = section.choice(key, "local", types);
  if (type == "local") return LauncherType::kLocal;
  return type == "mpi" ? LauncherType::kMpi : LauncherType::kSlurm;
}

void read_launcher(Section& root, Launcher& launcher) {
  const std::string key = "launcher";
  const Value* value = root.find(key);
  if (!value) return;
  if (!value->is_map()) {
    launcher.type = read_launcher_type(root, key);
    return;
  }
  Section section = root.section(key);
  if (!section.find("type")) section.report_missing("type", "local, mpi or slurm");
  launcher.type = read_launcher_type(section, "type");
  const Value* options = section.find("options");
  if (options && options->is_scalar()) {
    auto words = split_words(options->text);
    if (!words)
      section.report(*options, "options", "has a quote or backslash with nothing after it: " + describe(*options));
    launcher.options = words.value_or(std::vector<std::string>());
  } else {
    launcher.options = section.texts("options");
  }
  const Value* type = section.find("type");
  if (type && type->is_scalar() && type->text == "local" && !launcher.options.empty())
    section.report(*options, "options",
                   "has no effect with type local; mpi and slurm have arguments for mpirun and srun");
  section.finish();
}

void read_scheduler(Section section, Scheduler& scheduler) {
  const std::array<std::string, 2> policies{"best", "worst"};
  const std::string policy = section.choice("fitting_policy", "best", policies);
  scheduler.fitting_policy = policy == "worst" ? FittingPolicy::kWorst : FittingPolicy::kBest;
  scheduler.allow_heterogeneous_fits = section.boolean("allow_heterogeneous_fits", true);
  scheduler.preemption = section.boolean("preemption", false);
  const double seconds = section.number("grow_after", 60, 0, 1'000'000);
  scheduler.grow_after = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  section.finish();
}

}  // namespace

std::string to_string(AgentSlotType type) {
  if (type == AgentSlotType::kAuto) return "auto";
  return type == AgentSlotType::kCuda ? "cuda" : "cpu";
}

std::string to_string(LauncherType type) {
  if (type == LauncherType::kLocal) return "local";
  return type == LauncherType::kMpi ? "mpi" : "slurm";
}

Cluster read_cluster(const std::filesystem::path& file) {
  Collector collector(file.string());
  Cluster cluster;
  cluster.file = file;
  const Value document = parse_document(read_text(file, "cluster", collector), collector);

  Section root(&document, "", document.at, collector);
  read_agents(root, cluster);
  read_network(root.section("task_container_defaults"), cluster);
  read_launcher(root, cluster.launcher);
  read_scheduler(root.section("scheduler"), cluster.scheduler);
  root.finish();
  collector.throw_if_any();
  return cluster;
}

}  // namespace dtrain::config
