#include "dtrain/rank/run_folder.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/run_records.h"

namespace dtrain::rank {
namespace {

namespace fs = std::filesystem;

constexpr auto kRequestPollPeriod = std::chrono::milliseconds(100);

// Reads the events of a run, each once.
class EventReader {
 public:
  explicit EventReader(const RunFolder& folder) : fd_(open_regular(folder.events())) {}
  // Empty: there is no further event yet. DataError: a line is longer than any event.
  std::optional<Json> next() {
    for (;;) {
      if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
        profile::Damage damage;  // `dtrain runs` names it
        auto event = profile::parse_record(profile::RecordFile::kEvents, std::string_view(unread_).substr(0, end),
                                           "events.jsonl", damage);
        unread_.erase(0, end + 1);
        if (event) return event;
        continue;
      }
      if (unread_.size() > FileLines::kLongestLine) throw DataError("events.jsonl: a line is too long for an event");
      char piece[64 << 10];
      const ssize_t count = ::read(fd_.get(), piece, sizeof piece);
      if (count <= 0) return std::nullopt;
      unread_.append(piece, static_cast<std::size_t>(count));
    }
  }

 private:
  UniqueFd fd_;
  std::string unread_;
};

struct Ranks {
  std::set<int> started;
  Json first;  // rank 0's event
};

Ranks read_ranks(EventReader& events) {
  Ranks ranks;
  while (const auto event = events.next()) {
    const std::string name = text_at(*event, "event");
    if (name == "attempt_started") ranks = {};
    if (name != "rank_started") continue;
    const int rank = value_at<int>(*event, "rank").value_or(-1);
    ranks.started.insert(rank);
    if (rank == 0) ranks.first = *event;
  }
  return ranks;
}

// True if the process handles the signal. Without a handler the signal would end the process.
bool catches(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    const auto mask = std::stoull(line.substr(sizeof "SigCgt:" - 1), nullptr, 16);
    return (mask >> (signal - 1) & 1) != 0;
  }
  return false;
}

// True if the process is a rank of the run: the launcher has put the run's folder into its environment. A rank that no
// launcher of this host has started holds the run's events open.
bool belongs_to(pid_t pid, const RunFolder& folder) {
  const fs::path process = fs::path("/proc") / std::to_string(pid);
  std::ifstream file(process / "environ");
  std::error_code code;
  constexpr std::string_view kMark = "DTRAIN_RUN_DIR=";
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with(kMark) && fs::equivalent(variable.substr(kMark.size()), folder.path, code)) return true;
  }
  for (const auto& entry : fs::directory_iterator(process / "fd", code)) {
    if (fs::equivalent(entry.path(), folder.events(), code)) return true;
  }
  return false;
}

// The process is what a file says, so it gets the signal only if it is the rank itself.
void send(const RunFolder& folder, const Json& rank_0, int steps) {
  const std::string host = text_at(rank_0, "host");
  const pid_t pid = value_at<int>(rank_0, "pid").value_or(0);
  const std::string here = host::host_identity().name;
  const std::string whom = "rank 0 (process " + std::to_string(pid) + " on " + host + ")";
  if (host != here) {
    throw ConfigError(whom + " cannot be reached from " + here, "run this command on " + host + ", or send it SIGUSR2");
  }
  const std::uint64_t ticks = pid > 0 ? host::start_ticks(pid) : 0;
  if (ticks == 0 || ticks != value_at<std::uint64_t>(rank_0, "start_ticks")) {
    throw ConfigError(whom + " is not there any more, or not visible from here");
  }
  if (!belongs_to(pid, folder)) {
    throw ConfigError(whom + " is no rank of the run in " + folder.path.string() + ", though its events say so",
                      "if another user runs it, ask that user; otherwise do not trust this folder");
  }
  if (!catches(pid, SIGUSR2)) {
    throw ConfigError(whom + " cannot trace before training begins", "try again then");
  }
  sigval value{};
  value.sival_int = steps;
  if (::sigqueue(pid, SIGUSR2, value) != 0) throw SystemError("cannot send a signal to " + whom, errno);
}

}  // namespace

RequestedTrace request_trace(const RunFolder& folder, int steps, const std::function<void(const std::string&)>& say) {
  if (is_over(folder)) throw ConfigError("the run in " + folder.path.string() + " is over: nothing can be traced");
  EventReader events(folder);
  const Ranks ranks = read_ranks(events);
  if (ranks.first.is_null()) throw ConfigError("rank 0 of " + folder.path.string() + " has not started yet");
  send(folder, ranks.first, steps);
  RequestedTrace result;
  while (result.written.size() + result.failed.size() < ranks.started.size()) {
    const bool over = is_over(folder);  // asked first, so that events written before the end are read
    while (const auto event = events.next()) {
      const std::string name = text_at(*event, "event");
      const int rank = value_at<int>(*event, "rank").value_or(-1);
      const auto batch = [&](const char* key) { return value_at<std::int64_t>(*event, key).value_or(0); };
      if (name == "trace_refused" && event->contains("reason")) {
        throw Error("the run takes no trace: " + text_at(*event, "reason"));
      }
      if (name == "trace_refused") {
        throw Error("the run already traces, or will trace, batches " + std::to_string(batch("first_batch")) + " to " +
                    std::to_string(batch("last_batch")));
      }
      if (name == "trace_scheduled") {
        result.first_batch = batch("first_batch");
        result.last_batch = batch("last_batch");
        say("all ranks trace batches " + std::to_string(result.first_batch) + " to " +
            std::to_string(result.last_batch));
      }
      if (result.first_batch == 0) continue;
      if (name == "trace_written" && batch("first_batch") == result.first_batch) result.written.insert(rank);
      if (name == "trace_failed") result.failed.insert(rank);
    }
    if (over) break;
    std::this_thread::sleep_for(kRequestPollPeriod);
  }
  if (result.written.empty()) {
    throw Error(result.failed.empty() ? "the run ended before its traces were written"
                                      : "no rank could write its trace; the ranks' logs say why");
  }
  return result;
}

}  // namespace dtrain::rank
