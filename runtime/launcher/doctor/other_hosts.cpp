#include "doctor/checks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "doctor/checks.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/network.h"
#include "dtrain/launcher/internal_commands.h"
#include "dtrain/rank/libtorch.h"
#include "gpu_limits.h"
#include "machine_limits.h"
#include "network/link_meter.h"
#include "network/network_choice.h"

namespace dtrain::launcher {

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
  for (const scheduler::ClusterAgent& agent : cluster.agents) {
    const bool known = std::find(hosts.begin(), hosts.end(), agent.agent.host) != hosts.end();
    if (!agent.here && !known) hosts.push_back(agent.agent.host);
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
    for (Finding& finding : findings_of(answer.at("findings"))) findings.push_back(std::move(finding));
  } catch (const Error& error) {
    findings.push_back(problem("checks", error.what(), error.remedy().empty() ? "see its log" : error.remedy()));
  } catch (const Json::exception&) {
    findings.push_back(problem("checks", "its answer cannot be read", "is it the same dtrain?"));
  }
}

}  // namespace

ClockOffset clock_offset(const std::vector<ClockReading>& readings) {
  ClockOffset best{.error = Nanoseconds(std::numeric_limits<std::int64_t>::max())};
  for (const ClockReading& reading : readings) {
    const Nanoseconds error = (reading.after - reading.before) / 2;
    if (error < best.error) best = {reading.theirs - (reading.before + error), error};
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
    for (const CommonNetwork& network : choice.networks) {
      const bool first = &network == &choice.networks.front();
      std::string text = network.render() + (first ? "; taken: " + choice.reason : "");
      const bool slow = first && network.figures && network.figures->bits_per_second < kSlowNetwork;
      if (!network.usable()) {
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

namespace {

std::string limit_row(const char* name, double value, const char* unit, const std::string& text) {
  char start[96];
  std::snprintf(start, sizeof start, "  %-16s  %8.*f %-7s  ", name, value < 100 ? 1 : 0, value, unit);
  return start + text + "\n";
}

std::string limit_rows(const char* name, const std::map<std::string, double>& of_types) {
  std::string text;
  for (const char* type : {"float32", "bfloat16", "float16"}) {
    const auto found = of_types.find(type);
    if (found == of_types.end()) continue;
    text += limit_row(text.empty() ? name : "", found->second, "GFLOP/s", type);
  }
  return text;
}

std::string exchange_rows(const profile::GpuExchange& exchange) {
  std::string text;
  const std::string between = " between " + std::to_string(exchange.gpus) + " GPUs";
  for (const auto& [name, rates] : {std::pair("NCCL all-reduce", &exchange.all_reduce_gb_s),
                                    std::pair("NCCL all-gather", &exchange.all_gather_gb_s)}) {
    bool is_first = true;
    for (const auto& [bytes, rate] : *rates) {
      text += limit_row(std::exchange(is_first, false) ? name : "", rate, "GB/s",
                        "of " + format_bytes(static_cast<double>(bytes)) + between);
    }
  }
  return text;
}

std::string whole_percent(double value) {
  return std::to_string(std::lround(value)) + "%";
}

}  // namespace

RanksOfHost ranks_to_bench(const std::optional<scheduler::ClusterAgents>& cluster) {
  RanksOfHost ranks{.threads = 0, .ranks = 0};
  if (cluster) {
    for (const scheduler::ClusterAgent& agent : cluster->agents) {
      if (!agent.here) continue;
      for (const scheduler::ClusterSlot& slot : agent.slots) {
        if (slot.is_gpu() || slot.cpus.empty()) continue;
        ranks.cpus.push_back(slot.cpus);
        if (ranks.threads == 0) ranks.threads = slot.threads;
      }
    }
  }
  ranks.ranks = static_cast<int>(ranks.cpus.size());
  if (ranks.ranks == 0) return {.threads = 1, .ranks = static_cast<int>(host::physical_cores().size())};
  return ranks;
}

std::optional<double> matmul_cost(const profile::RankLimits& limits) {
  const auto fast = limits.gflops.find("float32");
  if (!limits.matmul_default_gflops || fast == limits.gflops.end()) return std::nullopt;
  return std::max(0.0, 100 * (1 - *limits.matmul_default_gflops / fast->second));
}

std::string render_limits(std::span<const profile::RankLimits> all) {
  std::string text;
  for (const profile::RankLimits& limits : all) {
    text += "the limits of a rank with " + count_of(limits.threads, "thread") + ", while " +
            (limits.ranks == 1 ? "no other works" : count_of(limits.ranks, "rank") + " work") +
            (limits.cpu.empty() ? "" : " (" + limits.cpu + ")") + "\n";
    if (profile::is_disturbed(limits)) {
      text += "  too low: other programs had " + profile::displaced_text(*limits.displaced_share) +
              " of the cores meanwhile; a launch measures again when the machine is quieter\n";
    }
    if (limits.memory_gb_s)
      text += limit_row("memory", *limits.memory_gb_s, "GB/s", "read and written (STREAM's triad)");
    text += limit_rows("matrix products", limits.gflops);
    if (const auto cost = matmul_cost(limits)) {
      text +=
          limit_row("", *limits.matmul_default_gflops, "GFLOP/s",
                    "float32 with optimizations.matmul: default, " + whole_percent(*cost) + " less; auto avoids it");
    }
    text += limit_rows("convolutions", limits.convolution_gflops);
    if (limits.all_reduce_gb_s)
      text +=
          limit_row("all-reduce", *limits.all_reduce_gb_s, "GB/s", "of each rank's gradients, through shared memory");
  }
  return text;
}

std::string render_gpu_limits(std::span<const profile::GpuLimits> all) {
  std::string text;
  for (const profile::GpuLimits& limits : all) {
    text += "the limits of a GPU (" + limits.kind.name +
            (limits.kind.driver.empty() ? "" : ", driver " + limits.kind.driver) + ")\n";
    std::string name = "matrix products";
    for (const char* type : {"float32", "tf32", "bfloat16", "float16"}) {
      const auto found = limits.gflops.find(type);
      if (found == limits.gflops.end()) continue;
      text += limit_row(std::exchange(name, "").c_str(), found->second, "GFLOP/s", type);
    }
    if (limits.memory_read_gb_s) text += limit_row("memory", *limits.memory_read_gb_s, "GB/s", "read");
    if (limits.memory_copy_gb_s) text += limit_row("", *limits.memory_copy_gb_s, "GB/s", "read and written by copies");
    name = "host's memory";
    for (const auto& [copy, what] :
         {std::pair("to_gpu", "to the GPU, page-locked"), std::pair("from_gpu", "from the GPU, page-locked"),
          std::pair("to_gpu_pageable", "to the GPU, pageable"),
          std::pair("from_gpu_pageable", "from the GPU, pageable")}) {
      const auto found = limits.host_copy_gb_s.find(copy);
      if (found == limits.host_copy_gb_s.end()) continue;
      text += limit_row(std::exchange(name, "").c_str(), found->second, "GB/s", what);
    }
    if (limits.launch_us)
      text += limit_row("launch", *limits.launch_us, "us", "of an operator that does nearly nothing");
    text += limits.exchange ? exchange_rows(*limits.exchange)
                            : std::string("  NCCL              not measured: that takes two GPUs of this kind\n");
  }
  return text;
}

std::optional<Finding> judge_matmul(bool has_slow_path, std::span<const profile::RankLimits> known) {
  if (!has_slow_path) return std::nullopt;
  std::string text =
      "by default, the MKL in libtorch takes a slow path on processors of AMD; optimizations.matmul: auto ";
  text += "takes the fast one";
  for (const profile::RankLimits& limits : known) {
    if (const auto cost = matmul_cost(limits))
      return ok("matmul", text + " (default costs " + whole_percent(*cost) + " of the float32 rate)");
  }
  return ok("matmul", text + " (dtrain doctor --bench measures the difference)");
}

std::optional<Finding> check_matmul(const rank::Variables& variables) {
  return judge_matmul(host::is_amd_with_avx2(), LimitsCache(rank::cache_folder(variables)).of_this_machine());
}

namespace {

LinkKey key_of(const Json& request) {
  return {request.at("secret").get<std::string>(), request.at("server").get<int>()};
}

LinkTarget target_of(const Json& request) {
  return {request.at("from").get<std::string>(), request.at("address").get<std::string>(),
          request.at("port").get<int>()};
}

class Answers {
 public:
  Json to(const Json& request) {
    const std::string what = request.at("do").get<std::string>();
    if (what == probe::kInterfaces) return interfaces();
    if (what == probe::kRoutes) return routes(request);
    if (what == probe::kServe) {
      server_.emplace(request.at("address").get<std::string>(), key_of(request));
      return {{"port", server_->port()}};
    }
    if (what == probe::kRoundTrip) return {{"ns", measure_round_trip(target_of(request), key_of(request)).count()}};
    if (what == probe::kBandwidth) {
      const Nanoseconds duration(request.at("duration_ns").get<std::int64_t>());
      return {{"bits_per_second", measure_bandwidth(target_of(request), key_of(request), duration)}};
    }
    if (what == probe::kClock) return {{"wall_ns", SystemClock().wall().count()}};
    if (what == probe::kExists) {
      std::error_code code;
      return {{"exists", std::filesystem::exists(request.at("path").get<std::string>(), code)}};
    }
    if (what == probe::kChecks) return checks(request);
    if (what == probe::kLimits)
      return to_json(
          machine_limits(ranks_of_host(request.at("ranks")), Measure::kIfUnknown, rank::process_variables()));
    if (what == probe::kGpuLimits)
      return to_json(gpu_limits(request.at("gpus").get<std::vector<std::string>>(), Measure::kIfUnknown,
                                request.at("program").get<std::string>(), rank::process_variables()));
    throw Error("unknown request '" + what + "'");
  }

 private:
  static Json interfaces() {
    HostInterfaces result;
    result.addresses = host::interface_addresses();
    for (const host::InterfaceAddress& address : result.addresses) {
      if (const auto speed = host::link_speed(address.interface)) result.speeds[address.interface] = *speed;
    }
    return to_json(result);
  }

  static Json checks(const Json& request) {
    const std::vector<Finding> findings = check_host({.folder = request.at("folder").get<std::string>(),
                                                      .needs_mpi = request.at("needs_mpi").get<bool>(),
                                                      .needs_slurm = request.at("needs_slurm").get<bool>(),
                                                      .launches = false},
                                                     rank::look_at_gpus(), rank::process_variables());
    return {{"findings", to_json(findings)}};
  }

  static Json routes(const Json& request) {
    Json from = Json::array();
    for (const Json& address : request.at("to")) from.push_back(host::source_address(address.get<std::string>()));
    return {{"from", from}};
  }

  std::optional<LinkServer> server_;
};

bool say(const Json& words) {
  const std::string line = to_line(words) + "\n";
  return write_all(STDOUT_FILENO, line) == line.size();
}

Json answer(Answers& answers, const std::string& line) {
  try {
    return answers.to(Json::parse(line));
  } catch (const Error& error) {
    return {{"error", describe(error)}, {"remedy", error.remedy()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

// Reads one line of standard input without its newline; false at the end of the input.
bool read_line(std::string& line, std::string& rest) {
  for (;;) {
    if (const auto end = rest.find('\n'); end != std::string::npos) {
      line = rest.substr(0, end);
      rest.erase(0, end + 1);
      return true;
    }
    if (rest.size() > probe::kLongestLine) return false;
    char buffer[4096];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count <= 0) return false;
    rest.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

ExitCode host_probe() {
  std::signal(SIGPIPE, SIG_IGN);
  const host::HostIdentity identity = host::host_identity();
  if (!say({{"dtrain", rank::version()},
            {"protocol", probe::kProtocol},
            {"host", identity.name},
            {"key", identity.key}}))
    return ExitCode::kRunFailed;
  Answers answers;
  std::string line;
  std::string rest;
  while (read_line(line, rest)) {
    if (!say(answer(answers, line))) return ExitCode::kRunFailed;
  }
  return ExitCode::kDone;
}

}  // namespace dtrain::launcher
