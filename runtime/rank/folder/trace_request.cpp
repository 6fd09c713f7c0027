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
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"

namespace dtrain::run {
namespace {

constexpr auto kRequestPollPeriod = std::chrono::milliseconds(100);

// Reads the events of a run, each once.
class EventReader {
 public:
  explicit EventReader(const RunFolder& folder) : file_(folder.events()) {}
  std::optional<Json> next() {
    file_.clear();
    const auto before = file_.tellg();
    std::string line;
    if (!std::getline(file_, line) || file_.eof()) {  // no line, or one that is still being written
      file_.clear();
      file_.seekg(before);
      return std::nullopt;
    }
    Json event = Json::parse(line, nullptr, false);
    return event.is_object() ? event : Json::object();
  }

 private:
  std::ifstream file_;
};

struct Ranks {
  std::set<int> started;
  Json first;  // rank 0's event
};

Ranks read_ranks(EventReader& events) {
  Ranks ranks;
  while (const auto event = events.next()) {
    const std::string name = event->value("event", std::string());
    if (name == "attempt_started") ranks = {};
    if (name != "rank_started") continue;
    const int rank = event->value("rank", -1);
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

void send(const Json& rank_0, int steps) {
  const std::string host = rank_0.value("host", std::string());
  const pid_t pid = rank_0.value("pid", 0);
  const std::string here = host::host_identity().name;
  const std::string whom = "rank 0 (process " + std::to_string(pid) + " on " + host + ")";
  if (host != here) {
    throw ConfigError(whom + " cannot be reached from " + here, "run this command on " + host + ", or send it SIGUSR2");
  }
  const std::uint64_t ticks = host::start_ticks(pid);
  if (ticks == 0 || ticks != rank_0.value("start_ticks", ticks)) {
    throw ConfigError(whom + " is not there any more, or not visible from here");
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
  send(ranks.first, steps);
  RequestedTrace result;
  while (result.written.size() + result.failed.size() < ranks.started.size()) {
    const bool over = is_over(folder);  // asked first, so that events written before the end are read
    while (const auto event = events.next()) {
      const std::string name = event->value("event", std::string());
      const int rank = event->value("rank", -1);
      const auto batch = [&](const char* key) { return event->value(key, std::int64_t{0}); };
      if (name == "trace_refused" && event->contains("reason")) {
        throw Error("the run takes no trace: " + event->value("reason", std::string()));
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

}  // namespace dtrain::run
