#include "hostfile.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "slot_limits.h"

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

}  // namespace dtrain::scheduler
