#include "doctor/other_hosts.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include "doctor/checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/network.h"
#include "network/probe_session.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kGreetingPatience = 15s;
constexpr auto kChecksPatience = 30s;
constexpr auto kClockPatience = 5s;
constexpr int kClockReadings = 5;
constexpr Nanoseconds kClocksApart = 100ms;
constexpr double kSlowNetwork = 200e6;  // bits per second

ProbeSession::Time in(std::chrono::seconds patience) {
  return std::chrono::steady_clock::now() + patience;
}

// Returns the hosts of the agents that are not on this host, each once.
std::vector<std::string> others(const scheduler::ClusterAgents& cluster) {
  std::vector<std::string> hosts;
  for (const scheduler::ClusterAgent& one : cluster.agents) {
    const bool known = std::find(hosts.begin(), hosts.end(), one.agent.host) != hosts.end();
    if (!one.here && !known) hosts.push_back(one.agent.host);
  }
  return hosts;
}

// A file that exists as long as this object does.
class Token {
 public:
  explicit Token(const fs::path& folder) : path_(folder / (".dtrain-doctor-" + random_hex(8))) {
    try {
      write_file_atomic(path_, "");
    } catch (const SystemError&) {  // the folder cannot be written, which another check reports
      path_.clear();
    }
  }
  ~Token() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Json answer_of(ProbeSession& session, const Json& request, std::chrono::seconds patience) {
  session.send(request);
  Json answer = session.receive(in(patience));
  if (answer.contains("error")) throw CommError(answer.value("error", ""), answer.value("remedy", ""));
  return answer;
}

Finding check_clock(ProbeSession& session) {
  const SystemClock clock;
  std::vector<ClockReading> readings;
  for (int i = 0; i < kClockReadings; ++i) {
    const Nanoseconds before = clock.wall();
    const Json answer = answer_of(session, {{"do", probe::kClock}}, kClockPatience);
    readings.push_back({before, Nanoseconds(answer.at("wall_ns").get<std::int64_t>()), clock.wall()});
  }
  return judge_clock(clock_offset(readings));
}

Finding check_shared(ProbeSession& session, const fs::path& token) {
  const Json answer = answer_of(session, {{"do", probe::kExists}, {"path", token.string()}}, kClockPatience);
  const std::string folder = token.parent_path().string();
  return ok("run folder", answer.at("exists").get<bool>()
                              ? folder + " is shared with this host"
                              : folder + " is not shared: records are collected at the end of a run");
}

// Receives the answer to kChecks, which was requested from all hosts before, and runs the remaining checks.
void finish(ProbeSession& session, const fs::path& token, std::vector<Finding>& findings) {
  try {
    const Json answer = session.receive(in(kChecksPatience));
    if (answer.contains("error")) throw CommError(answer.value("error", ""), answer.value("remedy", ""));
    findings.push_back(check_clock(session));
    if (!token.empty()) findings.push_back(check_shared(session, token));
    for (Finding& one : findings_of(answer.at("findings"))) findings.push_back(std::move(one));
  } catch (const Error& error) {
    findings.push_back(problem("checks", error.what(), error.remedy().empty() ? "see its log" : error.remedy()));
  } catch (const Json::exception&) {
    findings.push_back(problem("checks", "its answer cannot be read", "is it the same dtrain?"));
  }
}

}  // namespace

ClockOffset clock_offset(const std::vector<ClockReading>& readings) {
  ClockOffset best{.error = Nanoseconds(std::numeric_limits<std::int64_t>::max())};
  for (const ClockReading& one : readings) {
    const Nanoseconds error = (one.after - one.before) / 2;
    if (error < best.error) best = {one.theirs - (one.before + error), error};
  }
  return best;
}

Finding judge_clock(const ClockOffset& clock) {
  const Nanoseconds apart = clock.offset < 0ns ? -clock.offset : clock.offset;
  const std::string text = format_duration(apart) + (clock.offset < 0ns ? " behind" : " ahead of") +
                           " this host's, ± " + format_duration(clock.error);
  if (apart - clock.error < kClocksApart) return ok("clock", text);
  return warning("clock", text,
                 "run an NTP service (chrony, systemd-timesyncd) on all hosts: events and logs of hosts are ordered by "
                 "time");
}

std::vector<HostFindings> check_other_hosts(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote,
                                            const fs::path& folder) {
  const std::vector<std::string> hosts = others(cluster);
  if (hosts.empty()) return {};
  const Token token(existing_part(folder));
  const config::LauncherType launcher = cluster.cluster.launcher.type;
  std::vector<HostFindings> result;
  std::vector<std::pair<std::size_t, ProbeSession>> sessions;
  for (const std::string& host : hosts) {
    result.push_back({host, {}});
    try {
      sessions.emplace_back(result.size() - 1,
                            ProbeSession(host, remote(host, {executable_path().string(), "host-probe"})));
    } catch (const Error& error) {
      result.back().findings.push_back(problem("remote shell", error.what(), error.remedy()));
    }
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::pair<std::size_t, ProbeSession*>> reached;
  for (auto& [index, session] : sessions) {
    std::vector<Finding>& findings = result[index].findings;
    try {
      session.greet(start + kGreetingPatience);
      session.send({{"do", probe::kChecks},
                    {"folder", fs::absolute(folder).string()},
                    {"needs_mpi", launcher == config::LauncherType::kMpi},
                    {"needs_slurm", launcher == config::LauncherType::kSlurm}});
      const Nanoseconds took = std::chrono::steady_clock::now() - start;
      findings.push_back(
          ok("remote shell", session.name() + " answers within " + format_duration(took) + ", with the same dtrain"));
      reached.emplace_back(index, &session);
    } catch (const Error& error) {
      findings.push_back(problem("remote shell", error.what(), error.remedy()));
    }
  }
  for (auto& [index, session] : reached) finish(*session, token.path(), result[index].findings);
  return result;
}

std::vector<Finding> check_network(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote) {
  const std::string& wanted = cluster.cluster.network_interface;
  const std::vector<std::string> hosts = others(cluster);
  std::vector<Finding> result;
  try {
    if (hosts.empty()) {
      if (wanted == "auto") return {};
      const std::string name = host::interface_of(wanted, cluster.source + ": dtrain_network_interface: ");
      return {ok("network", name + " is the interface that " + cluster.source + " names")};
    }
    const NetworkChoice choice =
        choose_network({.hosts = hosts, .wanted = wanted, .source = cluster.source, .remote = remote});
    for (const CommonNetwork& one : choice.networks) {
      const bool first = &one == &choice.networks.front();
      std::string text = one.render() + (first ? "; taken: " + choice.reason : "");
      const bool slow = first && one.figures && one.figures->bits_per_second < kSlowNetwork;
      if (!one.usable()) {
        result.push_back(warning("network", std::move(text), "open it in the firewalls, if it is meant to be used"));
      } else if (slow) {
        result.push_back(warning("network", std::move(text),
                                 "gradients wait for it: optimizations.gradient_compression, or a faster network"));
      } else {
        result.push_back(ok("network", std::move(text)));
      }
    }
    if (const std::string several = several_networks_warning(choice); !several.empty()) {
      result.push_back(
          warning("network", several, "name one with dtrain_network_interface, so that no measurement decides"));
    }
  } catch (const Error& error) {
    result.push_back(problem("network", error.what(), error.remedy()));
  }
  return result;
}

}  // namespace dtrain::run
