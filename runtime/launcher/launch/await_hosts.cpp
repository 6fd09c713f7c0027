// Waits for hosts that were lost: mpirun would fail at once where one of them is not there yet.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "launch/job_ranks.h"
#include "launch/recoveries.h"

namespace dtrain::launcher {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskAgain{500}, kPollOfHosts{20};
constexpr std::chrono::seconds kPatienceWithAnswer{5}, kSayAfter{2};

// Asks a host again and again if it is there. A shell that has met a dead link tries it again later and later, so
// younger ones are started beside it.
class Knocks {
 public:
  explicit Knocks(std::vector<std::string> command) : command_(std::move(command)) {}

  bool answered() {
    const auto now = SteadyClock::now();
    for (auto& [began, process] : asked_) {
      const auto status = process.wait(std::chrono::milliseconds(0));
      if (status && status->success()) return true;
    }
    while (!asked_.empty() && now - asked_.front().first > kPatienceWithAnswer) asked_.pop_front();
    if (asked_.empty() || now - asked_.back().first >= kAskAgain) ask(now);
    return false;
  }

 private:
  void ask(SteadyClock::time_point now) {
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null) throw SystemError("cannot open /dev/null", errno);
    ProcessOptions options{.command = command_, .fds = {{0, null.get()}, {1, null.get()}, {2, null.get()}}};
    asked_.emplace_back(now, Process::start(options));
  }

  const std::vector<std::string> command_;
  std::deque<std::pair<SteadyClock::time_point, Process>> asked_;
};

// Returns the end of a launch that is asked to stop while it has no ranks.
std::optional<Outcome> stop_if_asked(const Attempt& attempt, int kills_before) {
  Interrupt interrupt;
  if (const auto signal = attempt.signals.next()) {
    interrupt = {.why = rank::signal_name(*signal), .signal = *signal};
  } else if (attempt.task.kills() > kills_before) {
    interrupt = {.why = "dtrain task kill", .signal = SIGINT};
  }
  if (!interrupt.exists()) return std::nullopt;
  attempt.events.write("interrupted", {{"signal", interrupt.why}});
  const bool goes_on_later = interrupt.signal != SIGINT && attempt.resume.exists();
  return Outcome{.exit_code = goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted, .interrupt = interrupt};
}

std::string names_of(const std::map<std::string, Knocks>& hosts) {
  std::vector<std::string> names;
  for (const auto& [name, knocks] : hosts) names.push_back(name);
  return (names.size() == 1 ? "host " : "hosts ") + join(names, ", ");
}

}  // namespace

std::optional<Outcome> await_hosts(const Attempt& attempt, const RemoteHosts& hosts) {
  std::map<std::string, Knocks> missing;
  for (const rank::RankPlacement& rank : attempt.placed.ranks) {
    if (rank.host != attempt.placed.host) missing.try_emplace(rank.host, hosts.command(rank.host, "true"));
  }
  const Nanoseconds patience = attempt.placed.experiment.communication_timeout;
  const int kills_before = attempt.task.kills();
  const auto began = SteadyClock::now();
  for (bool said = false;; ::poll(nullptr, 0, static_cast<int>(kPollOfHosts.count()))) {
    for (auto host = missing.begin(); host != missing.end();) {
      host = host->second.answered() ? missing.erase(host) : std::next(host);
    }
    if (missing.empty()) return std::nullopt;
    const auto waited = SteadyClock::now() - began;
    if (waited > patience) {
      return Outcome{.exit_code = ExitCode::kRunFailed,
                     .failure = Failure{.cause = names_of(missing) + " did not come back within " +
                                                 format_duration(patience) + " (communication.timeout)",
                                        .remedy = "check that the host runs and that its network works"}};
    }
    if (auto end = stop_if_asked(attempt, kills_before)) return end;
    if (waited < kSayAfter || std::exchange(said, true)) continue;
    attempt.screen.line("dtrain: waiting for " + names_of(missing) + ", for " + format_duration(patience) + " at most");
  }
}

}  // namespace dtrain::launcher
