#include "dtrain/run/host_probe.h"

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <unistd.h>

#include "calibration/machine_limits.h"
#include "doctor/checks.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/host/network.h"
#include "dtrain/run/version.h"
#include "network/link_meter.h"
#include "network/network_choice.h"
#include "network/probe_session.h"

namespace dtrain::run {
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
      return to_json(machine_limits(ranks_of_host(request.at("ranks")), Measure::kIfUnknown, process_variables()));
    throw Error("unknown request '" + what + "'");
  }

 private:
  static Json interfaces() {
    HostInterfaces result;
    result.addresses = host::interface_addresses();
    for (const host::InterfaceAddress& one : result.addresses) {
      if (const auto speed = host::link_speed(one.interface)) result.speeds[one.interface] = *speed;
    }
    return to_json(result);
  }

  static Json checks(const Json& request) {
    const std::vector<Finding> findings = check_host({.folder = request.at("folder").get<std::string>(),
                                                      .needs_mpi = request.at("needs_mpi").get<bool>(),
                                                      .needs_slurm = request.at("needs_slurm").get<bool>(),
                                                      .launches = false},
                                                     look_at_gpus(), process_variables());
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
  if (!say({{"dtrain", version()}, {"protocol", probe::kProtocol}, {"host", identity.name}, {"key", identity.key}}))
    return ExitCode::kRunFailed;
  Answers answers;
  std::string line;
  std::string rest;
  while (read_line(line, rest)) {
    if (!say(answer(answers, line))) return ExitCode::kRunFailed;
  }
  return ExitCode::kDone;
}

}  // namespace dtrain::run
