// dtrain-agent: the process that samples a host and writes its ranks' records. Started by start_agent() with its
// settings as one JSON argument. File descriptor 3 is its listening socket, 4 a pipe to report its start.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "agent/agent.h"
#include "dtrain/base/background.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/identity.h"
#include "dtrain/profile/agent_process.h"

namespace {

using namespace dtrain;
using namespace dtrain::profile;

constexpr int kSocketFd = 3;
constexpr int kReadyFd = 4;

AgentSettings parse(const Json& json) {
  AgentSettings settings;
  settings.facts.agent_id = json.at("agent").get<std::string>();
  settings.facts.profile_folder = json.at("profile_folder").get<std::string>();
  settings.facts.ranks = json.at("ranks").get<std::set<int>>();
  settings.facts.header = json.at("header");
  settings.facts.host = host::host_identity().name;
  settings.rank_timeout = std::chrono::seconds(json.at("rank_timeout_s").get<std::int64_t>());
  settings.sample_period = std::chrono::milliseconds(json.at("sample_period_ms").get<std::int64_t>());
  settings.starter_pid = json.at("starter_pid").get<pid_t>();
  settings.nvml_library = json.at("nvml_library").get<std::string>();
  if (const auto prometheus = json.find("prometheus"); prometheus != json.end()) {
    settings.prometheus = {prometheus->at("address").get<std::string>(), prometheus->at("port").get<int>()};
  }
  if (settings.facts.ranks.empty()) throw ConfigError("no local rank to wait for");
  if (settings.sample_period.count() <= 0) throw ConfigError("the sample period must be longer than 0 ms");
  std::error_code error;
  if (!std::filesystem::is_directory(settings.facts.profile_folder, error)) {
    throw ConfigError("there is no folder " + settings.facts.profile_folder.string());
  }
  return settings;
}

void report_start(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(kReadyFd, text.data(), text.size());
  ::close(kReadyFd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || ::fcntl(kSocketFd, F_GETFD) < 0 || ::fcntl(kReadyFd, F_GETFD) < 0) {
    std::fputs("dtrain-agent is started by dtrain, not by hand\n", stderr);
    return static_cast<int>(ExitCode::kBadInput);
  }
  ignore_polite_ends();
  // No other process may inherit these files.
  ::fcntl(kSocketFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kReadyFd, F_SETFD, FD_CLOEXEC);
  bool started = false;
  try {
    const Json json = Json::parse(argv[1]);
    AgentSettings settings = parse(json);
    redirect_output(settings.facts.profile_folder.parent_path() / "logs" /
                    ("agent-" + settings.facts.agent_id + ".log"));
    const Logger logger = make_stderr_logger();
    const SystemClock clock;
    Agent agent(std::move(settings), UnixListener(UniqueFd(kSocketFd), json.at("socket").get<std::string>()), clock,
                logger);
    report_start("ready");
    started = true;
    return agent.run() ? 0 : kRecordsLost;
  } catch (const std::exception& error) {
    if (!started) report_start(describe(error));
    std::fprintf(stderr, "dtrain-agent: %s\n", describe(error).c_str());
    return static_cast<int>(ExitCode::kRunFailed);
  }
}
