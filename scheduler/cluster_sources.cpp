#include "cluster_sources.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {
namespace {

constexpr std::size_t kMostBytes = 1 << 20;

// Returns the words of a line, without its comment; "slots = 4" is one word.
std::vector<std::string> words_of(std::string line) {
  line = line.substr(0, line.find('#'));
  std::string tight;
  for (const char letter : line) {
    const bool blank = letter == ' ' || letter == '\t' || letter == '\r';
    if (blank && !tight.empty() && tight.back() == '=') continue;
    if (letter == '=') tight.erase(tight.find_last_not_of(" \t") + 1);
    tight += blank ? ' ' : letter;
  }
  std::istringstream stream(tight);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Returns the number of slots; empty: the text is no valid number of slots.
std::optional<int> slots_in(const std::string& text) {
  const auto value = to_number<int>(text);
  return value && *value >= 1 && *value <= kMostSlots ? value : std::nullopt;
}

bool is_host_name(const std::string& text) {
  const std::string allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
  const auto at = text.find('@');
  const std::string host = at == std::string::npos ? text : text.substr(at + 1);
  return !host.empty() && at != 0 && host[0] != '-' && text[0] != '-' && host.find('@') == std::string::npos &&
         text.size() <= 255 && text.find_first_not_of(allowed) == std::string::npos;
}

struct Line {
  std::string host;
  std::optional<int> slots;
};

// Sets `error` to the fault of the line, if there is one.
Line read_line(std::vector<std::string> words, std::string& error) {
  Line line;
  const auto colon = words[0].find(':');
  if (colon != std::string::npos) {
    words.insert(words.begin() + 1, "slots=" + words[0].substr(colon + 1));
    words[0].resize(colon);
  }
  line.host = words[0];
  if (!is_host_name(line.host)) error = "is not the name of a host: '" + line.host + "'";
  std::optional<int> most;
  for (std::size_t i = 1; i < words.size() && error.empty(); ++i) {
    const auto equals = words[i].find('=');
    const std::string key = words[i].substr(0, equals);
    const bool is_slots = key == "slots" || key == "cpu" || key == "count";
    const bool is_most = key == "max-slots" || key == "max_slots";
    if (equals == std::string::npos || (!is_slots && !is_most)) {
      error = "has '" + words[i] + "'; only slots=N and max-slots=N are allowed";
      break;
    }
    const auto value = slots_in(words[i].substr(equals + 1));
    if (!value)
      error = key + " must be a whole number from 1 to " + std::to_string(kMostSlots) + ", as in " + key + "=4";
    (is_slots ? line.slots : most) = value;
  }
  if (error.empty() && most && line.slots && *most < *line.slots) {
    error = "max-slots=" + std::to_string(*most) + " is less than slots=" + std::to_string(*line.slots);
  }
  return line;
}

constexpr std::size_t kMostHosts = 65536;

[[noreturn]] void wrong(const std::string& name, const std::string& text, const std::string& what) {
  throw ConfigError("environment: " + name + "=" + text + ": " + what,
                    "Slurm sets it in an allocation; unset SLURM_JOB_NODELIST to be in none, or give --cluster FILE");
}

std::optional<int> number_in(const std::string& text) {
  const auto value = to_number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

// Splits the text at the commas outside of brackets.
std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char letter : text) {
    if (letter == '[') ++depth;
    if (letter == ']') --depth;
    if (letter == ',' && depth == 0) {
      items.emplace_back();
    } else {
      items.back() += letter;
    }
  }
  return items;
}

// Expands "1-3,07": the numbers keep as many digits as the first.
std::vector<std::string> ranges_of(const std::string& inside, const std::string& name, const std::string& text) {
  std::vector<std::string> result;
  for (const std::string& range : split(inside, ',')) {
    const auto dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const auto low = number_in(first);
    const auto high = number_in(last);
    if (!low || !high || *high < *low) wrong(name, text, "'" + range + "' is no range of numbers");
    if (static_cast<std::size_t>(*high - *low) >= kMostHosts) wrong(name, text, "too many hosts");
    for (int number = *low; number <= *high; ++number) {
      const std::string digits = std::to_string(number);
      result.push_back(std::string(first.size() > digits.size() ? first.size() - digits.size() : 0, '0') + digits);
    }
  }
  return result;
}

// Expand "n[1-3,07],gpu-a[1-2]x" to names, and "2(x3),1" to numbers. ConfigError, which begins with `name`, if invalid.
std::vector<std::string> expand_hostlist(const std::string& text, const std::string& name) {
  std::vector<std::string> hosts;
  for (const std::string& item : items_of(text)) {
    std::vector<std::string> expanded{""};
    for (std::size_t at = 0; at < item.size();) {
      const auto open = item.find('[', at);
      const std::string plain = item.substr(at, open - at);
      if (plain.find(']') != std::string::npos) wrong(name, text, "a ']' without a '['");
      for (std::string& host : expanded) host += plain;
      if (open == std::string::npos) break;
      const auto close = item.find(']', open);
      if (close == std::string::npos) wrong(name, text, "a '[' without a ']'");
      const auto numbers = ranges_of(item.substr(open + 1, close - open - 1), name, text);
      if (expanded.size() * numbers.size() > kMostHosts) wrong(name, text, "too many hosts");
      std::vector<std::string> longer;
      for (const std::string& host : expanded) {
        for (const std::string& number : numbers) longer.push_back(host + number);
      }
      expanded = std::move(longer);
      at = close + 1;
    }
    if (hosts.size() + expanded.size() > kMostHosts) wrong(name, text, "too many hosts");
    hosts.insert(hosts.end(), expanded.begin(), expanded.end());
  }
  for (const std::string& host : hosts) {
    if (host.empty() || host[0] == '-') wrong(name, text, "'" + host + "' is not the name of a host");
  }
  return hosts;
}

std::vector<int> expand_counts(const std::string& text, const std::string& name) {
  std::vector<int> counts;
  for (const std::string& item : split(text, ',')) {
    const auto open = item.find("(x");
    const bool repeated = open != std::string::npos && item.ends_with(')');
    const auto count = number_in(item.substr(0, repeated ? open : std::string::npos));
    const auto times = repeated ? number_in(item.substr(open + 2, item.size() - open - 3)) : 1;
    if (!count || *count < 1 || *count > kMostSlots || !times || *times < 1 ||
        counts.size() + static_cast<std::size_t>(*times) > kMostHosts) {
      wrong(name, text, "'" + item + "' is no number of slots, as 4 and 4(x2) are");
    }
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  }
  return counts;
}

const std::string* find(const std::map<std::string, std::string>& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() || found->second.empty() ? nullptr : &found->second;
}

// Returns the number of slots of each node, in the order of the nodes. `of_cores`: set if they are the node's CPUs.
std::vector<int> slots_of(const std::map<std::string, std::string>& variables, bool& of_cores) {
  const std::string tasks = "SLURM_TASKS_PER_NODE";
  const std::string cpus = "SLURM_JOB_CPUS_PER_NODE";
  const bool asked_for_tasks = find(variables, "SLURM_NTASKS") || find(variables, "SLURM_NTASKS_PER_NODE");
  if (const std::string* text = find(variables, tasks); text && (asked_for_tasks || !find(variables, cpus))) {
    return expand_counts(*text, tasks);
  }
  const std::string* text = find(variables, cpus);
  if (!text) {
    throw ConfigError("environment: SLURM_JOB_NODELIST is set, but neither " + tasks + " nor " + cpus,
                      "Slurm sets all of them in an allocation; give --cluster FILE where it does not");
  }
  std::vector<int> slots = expand_counts(*text, cpus);
  const std::string* per_task = find(variables, "SLURM_CPUS_PER_TASK");
  of_cores = per_task == nullptr;
  const int divisor = per_task ? number_in(*per_task).value_or(0) : 1;
  if (divisor < 1) wrong("SLURM_CPUS_PER_TASK", *per_task, "must be a whole number of at least 1");
  for (int& count : slots) count = std::max(1, count / divisor);
  return slots;
}

// Returns the number of GPUs in "4", "a100:4" or "a100:2,h100:2".
std::optional<int> gpus_in(const std::string& text) {
  int total = 0;
  for (const std::string& part : split(text, ',')) {
    const auto count = number_in(part.substr(part.rfind(':') + 1));
    if (!count || *count > kMostSlots) return std::nullopt;
    total += *count;
  }
  return total;
}

// Returns the number of GPUs of the job on a node; empty: Slurm does not report it.
std::optional<int> gpus_per_node(const std::map<std::string, std::string>& variables, std::size_t nodes) {
  for (const std::string name : {"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS"}) {
    const std::string* text = find(variables, name);
    if (!text) continue;
    const auto count = gpus_in(*text);
    if (!count) wrong(name, *text, "is no number of GPUs, as 4 and a100:4 are");
    return name == "SLURM_GPUS" ? *count / static_cast<int>(nodes) : *count;
  }
  return std::nullopt;
}

}  // namespace

std::string id_of_host(const std::string& host) {
  std::string id = host.substr(host.find('@') == std::string::npos ? 0 : host.find('@') + 1).substr(0, 64);
  for (char& letter : id) {
    const bool allowed = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                         (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-';
    if (!allowed) letter = '-';
  }
  if (id.empty() || id[0] == '.' || id[0] == '-') id = "host" + id;
  return id.substr(0, 64);
}

bool is_hostfile(const std::filesystem::path& file) {
  constexpr std::array kEndings{".yaml", ".yml", ".json"};
  if (std::find(kEndings.begin(), kEndings.end(), file.extension()) != kEndings.end()) return false;
  std::istringstream text;
  try {
    text.str(read_file(file, kMostBytes));
  } catch (const Error&) {
    return false;
  }
  for (std::string line; std::getline(text, line);) {
    const auto words = words_of(line);
    if (words.empty()) continue;
    const std::string& first = words[0];
    const bool is_key = first.ends_with(':') || first[0] == '{' || first.starts_with("---") || first[0] == '"' ||
                        first[0] == '\'' || first[0] == '%' || (words.size() > 1 && words[1].starts_with(':'));
    return !is_key;
  }
  return true;
}

config::Cluster read_hostfile(const std::filesystem::path& file, std::vector<std::string>& warnings) {
  config::Cluster cluster;
  cluster.file = file;
  cluster.launcher.type = config::LauncherType::kMpi;
  std::vector<config::Diagnostic> errors;
  std::map<std::string, std::size_t> places;  // by id
  std::vector<std::string> counted_as_one;
  std::istringstream text(read_file(file, kMostBytes));
  int number = 0;
  for (std::string raw; std::getline(text, raw);) {
    ++number;
    const auto words = words_of(raw);
    if (words.empty()) continue;
    std::string error;
    const Line line = read_line(words, error);
    const std::string id = id_of_host(line.host);
    const auto [place, is_new] = places.try_emplace(id, cluster.agents.size());
    if (error.empty() && is_new) {
      cluster.agents.push_back({.id = id, .host = line.host, .slots = 0});
    } else if (is_new) {
      places.erase(place);
    } else if (error.empty() && cluster.agents[place->second].host != line.host) {
      error = "is the host '" + cluster.agents[place->second].host + "' of an earlier line, as another user";
    }
    if (!error.empty()) {
      errors.push_back({file.string(), number, "", error});
      continue;
    }
    config::Agent& agent = cluster.agents[place->second];
    agent.slots += line.slots.value_or(1);
    if (!line.slots) counted_as_one.push_back(line.host);
    if (agent.slots > kMostSlots) {
      errors.push_back({file.string(), number, "",
                        "brings " + line.host + " to more than " + std::to_string(kMostSlots) + " slots"});
    }
  }
  if (errors.empty() && cluster.agents.empty()) errors.push_back({file.string(), 0, "", "names no host"});
  if (!errors.empty()) throw config::ConfigErrors(std::move(errors));
  if (!counted_as_one.empty()) {
    const std::size_t more = counted_as_one.size() - std::min<std::size_t>(counted_as_one.size(), 4);
    counted_as_one.resize(counted_as_one.size() - more);
    warnings.push_back(file.string() + ": lines without slots=N count as one slot: " + join(counted_as_one, ", ") +
                       (more == 0 ? "" : " and " + std::to_string(more) + " more"));
  }
  return cluster;
}

bool ask_for_gpus(const std::vector<std::string>& options) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string& option = options[i];
    if (option.starts_with("--gpus") || option.starts_with("-G") || option.starts_with("--ntasks-per-gpu")) return true;
    const bool names_resources = option.starts_with("--gres") || option.starts_with("--tres-per-task");
    const std::string value = option.find('=') != std::string::npos ? option
                              : i + 1 < options.size()              ? options[i + 1]
                                                                    : "";
    if (names_resources && value.find("gpu") != std::string::npos) return true;
  }
  return false;
}

std::optional<SlurmAllocation> find_slurm_allocation(const std::map<std::string, std::string>& variables,
                                                     config::AgentSlotType wanted) {
  std::string list = "SLURM_JOB_NODELIST";
  if (!find(variables, list)) list = "SLURM_NODELIST";
  const std::string* job = find(variables, "SLURM_JOB_ID");
  const std::string* nodes = find(variables, list);
  if (!job || !nodes) return std::nullopt;
  SlurmAllocation allocation{.job = *job};
  if (const std::string* here = find(variables, "SLURMD_NODENAME")) allocation.here = *here;
  const std::vector<std::string> hosts = expand_hostlist(*nodes, list);
  const std::vector<int> slots = slots_of(variables, allocation.of_cores);
  if (hosts.size() != slots.size()) {
    wrong(list, *nodes,
          std::to_string(hosts.size()) + " nodes, but slots of " + std::to_string(slots.size()) + " are given");
  }
  allocation.cluster.launcher.type = config::LauncherType::kSlurm;
  using config::AgentSlotType;
  auto type = AgentSlotType::kCpu;
  std::optional<int> gpus;
  if (wanted != AgentSlotType::kCpu) {
    gpus = gpus_per_node(variables, hosts.size());
    if (gpus.value_or(0) > 0) type = AgentSlotType::kCuda;
    if (!gpus && wanted == AgentSlotType::kCuda) type = AgentSlotType::kAuto;
  }
  allocation.of_cores = allocation.of_cores && type == AgentSlotType::kCpu;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const int most = type == AgentSlotType::kCuda ? *gpus : slots[i];
    allocation.cluster.agents.push_back(
        {.id = id_of_host(hosts[i]), .host = hosts[i], .slots = std::min(slots[i], most), .slot_type = type});
  }
  return allocation;
}

}  // namespace dtrain::scheduler
