// The monitor (program dtrain-agent): the process that samples a host and writes its ranks' records. Started by
// start_monitor() with its settings as one JSON argument. File descriptor 3 is its listening socket, 4 a pipe to report
// its start.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/log.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/network.h"
#include "dtrain/profile/monitor_process.h"
#include "monitor/dump.h"
#include "monitor/prometheus_endpoint.h"
#include "monitor/rank_connection.h"
#include "monitor/system_sampler.h"

namespace dtrain::profile {
namespace {

struct MonitorSettings {
  MonitorFacts facts;
  std::chrono::nanoseconds rank_timeout{};
  std::chrono::nanoseconds sample_period{};
  pid_t starter_pid = 0;
  std::string nvml_library;
  std::optional<PrometheusAddress> prometheus;
};

// The monitor process of a host: waits for the host's ranks, writes their records, samples the system, and exits after
// the last of them. One thread, besides the one that calls the GPUs' driver.
class Monitor {
 public:
  Monitor(MonitorSettings settings, UnixListener listener, const Clock& clock, Logger logger);

  // Runs until the last rank has gone. True: all records are on disk.
  bool run();

 private:
  void wait_for_events();
  void accept_processes();
  void serve_processes();
  void remove(std::list<RankConnection>::iterator& connection);
  void drain();
  void sample();
  std::vector<RankTotals> totals() const;
  std::map<std::string, std::string> labels() const;  // of the values for Prometheus
  void report_errors();
  // Returns the reason for the monitor to end; nullptr: it goes on.
  const char* reason_to_end();
  bool any_rank_connected() const;
  bool is_connected(int rank) const;

  MonitorSettings settings_;
  UnixListener listener_;
  const Clock& clock_;
  Logger logger_;
  SystemSampler sampler_;
  GpuSampler gpus_;
  std::unique_ptr<PrometheusEndpoint> prometheus_;  // null: not requested
  RestartEvents restarts_;                          // read for Prometheus alone
  DumpWriter dump_;
  std::list<RankConnection> connections_;
  std::map<int, RankTotals> gone_;  // ranks that have disconnected
  Nanoseconds started_at_;
  Nanoseconds last_sample_;
  Nanoseconds next_sample_;
  Nanoseconds next_drain_;
  Nanoseconds next_accept_{0};
  Nanoseconds orphaned_at_{0};
  std::uint64_t samples_ = 0;
  std::uint64_t lost_ = 0;
  bool stop_ = false;
  bool failed_ = false;    // something could not be written
  bool reported_ = false;  // to a rank
};

constexpr Nanoseconds kDrainPeriod = std::chrono::milliseconds(50);
constexpr Nanoseconds kIdlePeriod = std::chrono::milliseconds(200);  // while no rank is connected: watches its starter
constexpr Nanoseconds kHelloTimeout = std::chrono::seconds(10);      // for the hello after connecting
constexpr Nanoseconds kOrphanPatience = std::chrono::seconds(3);     // for ranks on their way when the starter died
constexpr Nanoseconds kShortestSample = std::chrono::milliseconds(50);  // rates over less mean nothing
constexpr Nanoseconds kAcceptPause = std::chrono::seconds(1);           // after no more could be accepted
constexpr std::chrono::milliseconds kGpuPatience{40};                   // rings are not drained meanwhile

std::int64_t own_cpu_ns() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& t) { return (t.tv_sec * 1'000'000LL + t.tv_usec) * 1000; };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

Json metric_units() {
  Json units = Json::object();
  for (const HostMetric& metric : kHostMetrics) units[metric.name] = metric.unit;
  for (const auto& [name, unit] :
       {std::pair("cpu_util_per_core", "percent"), std::pair("gpu_util", "percent"),
        std::pair("gpu_free_memory", "bytes"), std::pair("gpu_temperature", "celsius"),
        std::pair("gpu_foreign_processes", "processes"), std::pair("gpu_thermal_throttle", "0 or 1")}) {
    units[name] = unit;
  }
  return units;
}

Monitor::Monitor(MonitorSettings settings, UnixListener listener, const Clock& clock, Logger logger)
    : settings_(std::move(settings)),
      listener_(std::move(listener)),
      clock_(clock),
      logger_(std::move(logger)),
      sampler_(clock),
      gpus_(settings_.nvml_library, logger_),
      restarts_(settings_.facts.profile_folder.parent_path()),
      dump_(settings_.facts.profile_folder / ("agent-" + settings_.facts.agent_id + ".jsonl"), clock),
      started_at_(clock.monotonic()),
      last_sample_(started_at_),
      next_sample_(started_at_ + settings_.sample_period),
      next_drain_(started_at_) {
  Json fields = {{"kind", "agent"},
                 {"host", settings_.facts.host},
                 {"agent", settings_.facts.agent_id},
                 {"pid", ::getpid()},
                 {"ranks", settings_.facts.ranks},
                 {"sample_period_ns", settings_.sample_period.count()},
                 {"machine", machine_facts()},
                 {"units", metric_units()}};
  if (const auto& wanted = settings_.prometheus) {
    prometheus_ = std::make_unique<PrometheusEndpoint>(wanted->address, wanted->port, labels(), clock_);
    fields["prometheus"] = prometheus_->where();
  }
  dump_.write(header_line(fields, settings_.facts.header, clock_));
}

bool Monitor::run() {
  const char* reason = nullptr;
  while (reason == nullptr) {
    wait_for_events();
    accept_processes();
    serve_processes();
    if (prometheus_) prometheus_->serve();
    drain();
    sample();
    report_errors();
    reason = reason_to_end();
  }
  for (auto connection = connections_.begin(); connection != connections_.end();) remove(connection);
  next_sample_ = clock_.monotonic();
  if (next_sample_ - last_sample_ >= kShortestSample) sample();
  const EndRecord end{.time_ns = clock_.monotonic().count(),
                      .how = reason,
                      .samples = static_cast<std::int64_t>(samples_),
                      .lost = static_cast<std::int64_t>(dump_.lost()),
                      .cpu_ns = own_cpu_ns()};
  dump_.write(line_of("end", end));
  report_errors();
  dump_.sync();
  failed_ = failed_ || dump_.error().has_value();
  lost_ += dump_.lost();
  if (failed_) logger_->error("{} lines could not be written; the first error: see above", lost_);
  return !failed_;
}

void Monitor::wait_for_events() {
  const Nanoseconds now = clock_.monotonic();
  // poll() skips a file descriptor below 0.
  std::vector<pollfd> waiting{{now < next_accept_ ? -1 : listener_.fd(), POLLIN, 0}};
  for (const RankConnection& connection : connections_) waiting.push_back({connection.fd(), POLLIN, 0});
  if (prometheus_) prometheus_->wait_for(waiting);
  const Nanoseconds turn = connections_.empty() ? now + kIdlePeriod : std::max(now, next_drain_);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::min(turn, std::max(now, next_sample_)) - now);
  ::poll(waiting.data(), waiting.size(), static_cast<int>(wait.count()));
}

void Monitor::accept_processes() {
  if (clock_.monotonic() < next_accept_) return;
  try {
    while (auto socket = listener_.accept(std::chrono::milliseconds(0))) {
      connections_.emplace_back(std::move(*socket), settings_.facts, clock_, logger_,
                                [this](int rank) { return is_connected(rank); });
    }
  } catch (const SystemError& error) {
    // accept() fails for example without free file descriptors: connected ranks go on, and waiting ones are accepted
    // later.
    next_accept_ = clock_.monotonic() + kAcceptPause;
    logger_->warn("{}", error.what());
  }
}

void Monitor::serve_processes() {
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    const auto event = connection->serve();
    if (event == RankConnection::Event::kStop) stop_ = true;
    const bool silent = !connection->introduced() && clock_.monotonic() - connection->accepted_at() > kHelloTimeout;
    if (event == RankConnection::Event::kNothing && !silent) {
      ++connection;
    } else {
      remove(connection);
    }
  }
}

void Monitor::remove(std::list<RankConnection>::iterator& connection) {
  connection->close();
  if (connection->introduced()) {
    gone_[connection->rank()] = connection->totals();
    connection->sync();
    lost_ += connection->lost();
    if (const auto error = connection->error()) {
      failed_ = true;
      logger_->error("rank {}: {}", connection->rank(), *error);
    }
  }
  connection = connections_.erase(connection);
}

void Monitor::drain() {
  const Nanoseconds now = clock_.monotonic();
  if (now < next_drain_) return;
  next_drain_ = now + kDrainPeriod;
  for (RankConnection& connection : connections_) connection.drain();
}

void Monitor::sample() {
  const Nanoseconds now = clock_.monotonic();
  if (now < next_sample_) return;
  // The schedule is steady: a late sample does not delay the next, and missed samples are left out.
  while (next_sample_ <= now) next_sample_ += settings_.sample_period;
  std::vector<RankProcess> ranks;
  for (const RankConnection& connection : connections_) {
    if (connection.introduced()) ranks.push_back({connection.rank(), connection.pid()});
  }
  std::sort(ranks.begin(), ranks.end(), [](const RankProcess& a, const RankProcess& b) { return a.rank < b.rank; });
  for (RankConnection& connection : connections_) connection.sample_memory(settings_.sample_period);
  std::set<pid_t> pids;
  for (const RankProcess& rank : ranks) pids.insert(rank.pid);
  SystemSample sample = sampler_.sample(ranks);
  sample.gpus = gpus_.sample(pids, kGpuPatience);
  for (const host::GpuInfo& gpu : gpus_.take_new()) dump_.write(gpu_line(gpu));
  LineBuffer line;
  append_system(line, sample);
  dump_.write({line.data(), line.size()});
  last_sample_ = now;
  ++samples_;
  if (prometheus_) prometheus_->publish(sample, totals(), restarts_.poll());
}

std::map<std::string, std::string> Monitor::labels() const {
  std::map<std::string, std::string> labels{{"agent", settings_.facts.agent_id}};
  if (const auto run = value_at<std::string>(settings_.facts.header, "run")) labels["run"] = *run;
  return labels;
}

std::vector<RankTotals> Monitor::totals() const {
  std::map<int, RankTotals> of_all = gone_;
  for (const RankConnection& connection : connections_) {
    if (connection.introduced()) of_all[connection.rank()] = connection.totals();
  }
  std::vector<RankTotals> result;
  for (auto& [rank, totals] : of_all) result.push_back(std::move(totals));
  return result;
}

void Monitor::report_errors() {
  std::optional<std::string> error = dump_.error();
  for (const RankConnection& connection : connections_) {
    if (!error) error = connection.error();
  }
  if (!error) return;
  if (!failed_) logger_->error("{}", *error);
  failed_ = true;
  if (reported_) return;
  // Reports to one rank, the first connected one: one warning is enough for a host.
  std::vector<RankConnection*> here;
  for (RankConnection& connection : connections_) here.push_back(&connection);
  std::ranges::sort(here, {}, &RankConnection::rank);
  reported_ = std::ranges::any_of(here, [&](RankConnection* connection) { return connection->report(*error); });
}

bool Monitor::any_rank_connected() const {
  return std::ranges::any_of(connections_, &RankConnection::introduced);
}

bool Monitor::is_connected(int rank) const {
  return std::ranges::any_of(connections_, [=](const auto& c) { return c.introduced() && c.rank() == rank; });
}

const char* Monitor::reason_to_end() {
  if (stop_) return "stopped";
  const Nanoseconds now = clock_.monotonic();
  const bool orphaned = ::getppid() != settings_.starter_pid;
  if (orphaned && orphaned_at_.count() == 0) orphaned_at_ = now;
  if (any_rank_connected()) {
    if (orphaned) orphaned_at_ = now;  // the patience begins when no rank is connected
    return nullptr;
  }
  if (gone_.size() == settings_.facts.ranks.size()) return "all ranks ended";
  if (orphaned && now - orphaned_at_ > kOrphanPatience) return "starter gone";
  if (now - started_at_ > settings_.rank_timeout) return "no rank came in time";
  return nullptr;
}

}  // namespace

}  // namespace dtrain::profile

namespace {

using namespace dtrain;
using namespace dtrain::profile;

constexpr int kSocketFd = 3;
constexpr int kReadyFd = 4;

MonitorSettings parse(const Json& json) {
  MonitorSettings settings;
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
  prepare_for_limits();
  ignore_polite_ends();
  // No other process may inherit these files.
  ::fcntl(kSocketFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kReadyFd, F_SETFD, FD_CLOEXEC);
  bool started = false;
  try {
    const Json json = Json::parse(argv[1]);
    MonitorSettings settings = parse(json);
    redirect_output(settings.facts.profile_folder.parent_path() / "logs" /
                    ("agent-" + settings.facts.agent_id + ".log"));
    const Logger logger = make_stderr_logger();
    const SystemClock clock;
    Monitor monitor(std::move(settings), UnixListener(UniqueFd(kSocketFd), json.at("socket").get<std::string>()), clock,
                    logger);
    report_start("ready");
    started = true;
    return monitor.run() ? 0 : kRecordsLost;
  } catch (const std::exception& error) {
    const auto* const typed = dynamic_cast<const Error*>(&error);
    const std::string text = describe(error) + (typed && !typed->remedy().empty() ? "; " + typed->remedy() : "");
    if (!started) report_start(text);
    std::fprintf(stderr, "dtrain-agent: %s\n", text.c_str());
    return static_cast<int>(ExitCode::kRunFailed);
  }
}
