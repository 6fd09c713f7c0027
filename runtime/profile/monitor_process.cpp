#include "dtrain/profile/monitor_process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "ring.h"

namespace dtrain::profile {
namespace {

constexpr int kSocketFd = 3;  // the number that main() of the monitor expects
constexpr int kReadyFd = 4;
constexpr std::chrono::milliseconds kStartTimeout{60'000};  // other programs may keep the cores busy
constexpr std::chrono::milliseconds kStopTimeout{5'000};
constexpr std::chrono::milliseconds kEndOfStart{1'000};  // from the end of its report to its own
constexpr Nanoseconds kFirstRestartPause = std::chrono::seconds(1);
constexpr Nanoseconds kLongestRestartPause = std::chrono::seconds(60);
constexpr Nanoseconds kLongLife = std::chrono::minutes(10);

std::filesystem::path find_monitor() {
  static const char inside_this_library = 0;
  return find_program_beside(&inside_this_library, "dtrain-agent");
}

// Returns the monitor's report about its start: empty is good; a monitor that died closes the pipe without a byte.
std::string read_start_report(int fd) {
  const auto text = read_to_end(fd, std::chrono::steady_clock::now() + kStartTimeout);
  if (!text) return "no answer within " + std::to_string(kStartTimeout.count() / 1000) + " s";
  if (text->empty()) return "it ended at once";
  return *text == "ready" ? std::string() : *text;
}

}  // namespace

MonitorProcess start_monitor(const MonitorOptions& options) {
  MonitorProcess monitor = begin_monitor(options);
  await_monitor(monitor, options);
  return monitor;
}

MonitorProcess begin_monitor(const MonitorOptions& options) {
  UnixListener listener =
      options.socket.empty() ? UnixListener::create("agent") : UnixListener::create_named(options.socket);
  Pipe ready = make_pipe();

  Json settings = {{"agent", options.agent_id},
                   {"profile_folder", options.profile_folder.string()},
                   {"ranks", options.local_ranks},
                   {"rank_timeout_s", options.rank_timeout.count()},
                   {"sample_period_ms", options.sample_period.count()},
                   {"socket", listener.name()},
                   {"starter_pid", ::getpid()},
                   {"nvml_library", options.nvml_library},
                   {"header", options.header.is_object() ? options.header : Json::object()}};
  if (const auto& prometheus = options.prometheus) {
    settings["prometheus"] = {{"address", prometheus->address}, {"port", prometheus->port}};
  }
  ProcessOptions start;
  start.command = {find_monitor().string(), to_line(settings)};
  start.fds = {{kSocketFd, listener.fd()}, {kReadyFd, ready.writer.get()}};
  return {Process::start(start), listener.name(), std::move(ready.reader)};
}

void await_monitor(MonitorProcess& monitor, const MonitorOptions& options) {
  const std::string problem = read_start_report(monitor.report.get());
  monitor.report.reset();
  if (problem.empty()) return;
  throw Error("cannot start the monitor of host '" + options.agent_id + "': " + problem,
              "see the monitor's log in " + (options.profile_folder.parent_path() / "logs").string());
}

ExitStatus finish_monitor(MonitorProcess& monitor, std::chrono::milliseconds patience) {
  if (const auto status = monitor.process.wait(patience)) return *status;
  try {
    UnixSocket socket = UnixSocket::connect(monitor.socket, std::chrono::milliseconds(0));
    socket.send(to_line({{"type", message_type::kStop}}));
    if (const auto status = monitor.process.wait(kStopTimeout)) return *status;
  } catch (const SystemError&) {
    // The monitor is about to end and no longer listens; if it does not end, it is killed.
    if (const auto status = monitor.process.wait(kStopTimeout)) return *status;
  }
  monitor.process.kill(SIGKILL);
  return monitor.process.wait();
}

KeptMonitor::KeptMonitor(MonitorOptions options, const Clock& clock, Start start)
    : options_(std::move(options)),
      clock_(clock),
      monitor_(start == Start::kReady ? start_monitor(options_) : begin_monitor(options_)),
      started_at_(clock.monotonic()) {
  options_.socket = monitor_.socket;
}

void KeptMonitor::await() {
  try {
    await_monitor(monitor_, options_);
  } catch (const Error&) {
    const auto status = monitor_.process.wait(kEndOfStart);
    if (!status || status->signal == 0) throw;
  }
}

std::optional<KeptMonitor::Change> KeptMonitor::look() {
  Change change;
  const Nanoseconds now = clock_.monotonic();
  if (!status_) {
    status_ = monitor_.process.wait(std::chrono::milliseconds(0));
    if (!status_) return std::nullopt;
    // The monitor ends like this after its last rank.
    if (status_->signal == 0 && (status_->code == 0 || status_->code == kRecordsLost)) return std::nullopt;
    change.ended = status_;
    down_ = true;
    if (now - started_at_ >= kLongLife) pause_ = Nanoseconds{0};
    next_start_ = now + pause_;
  }
  if (!down_) return std::nullopt;
  if (now >= next_start_) {
    pause_ = std::clamp(2 * pause_, kFirstRestartPause, kLongestRestartPause);
    next_start_ = now + pause_;
    try {
      monitor_ = start_monitor(options_);
      status_.reset();
      down_ = false;
      started_at_ = now;
      change.started = pid();
    } catch (const Error& error) {
      change.problem = error.what();
    }
  }
  if (!change.ended && change.started == 0 && change.problem.empty()) return std::nullopt;
  return change;
}

ExitStatus KeptMonitor::finish(std::chrono::milliseconds patience) {
  return status_ ? *status_ : finish_monitor(monitor_, patience);
}

std::string KeptMonitor::Change::text() const {
  std::vector<std::string> parts;
  if (ended) parts.push_back((ended->signal != 0 ? "was " : "ended with ") + ended->describe());
  if (started > 0) parts.push_back("was started again as process " + std::to_string(started));
  if (!problem.empty()) parts.push_back("cannot be started again now: " + problem);
  return "the monitor of this host " + join(parts, " and ") +
         "; training goes on, system metrics of the time without it are missing";
}

}  // namespace dtrain::profile
