// The keeper of a host of a run that no launcher has started: it starts the host's ranks, and starts them again.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"
#include "entrypoint.h"
#include "launch/node_memory.h"
#include "launch/node_ranks.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kHear{100};
// Ranks of another host that do not end by themselves after a failure are killed by then.
constexpr std::chrono::seconds kEndPatience{60};

void check_request(const LaunchRequest& request) {
  const auto refuse = [](const std::string& option, const std::string& why) {
    throw ConfigError(option + " does not go with PET_NNODES, which says that this is one of several hosts", why);
  };
  if (request.detach) refuse("--detach", "run it in the foreground: the pod is what runs in the background");
  if (!request.cluster.empty()) refuse("--cluster", "every host starts its own ranks; unset PET_NNODES to launch them");
  if (request.json) refuse("--json", "leave it out");
}

std::string text_of(const NodePlan& plan, const rank::NodeEnvironment& node) {
  const std::string master = "rank 0      " + node.master.name + ":" + std::to_string(node.master.port) + "\n";
  const std::string threads = count_of(plan.threads, "thread") + " each\n";
  if (node.may_change()) {
    std::vector<std::string> numbers;
    for (const int hosts : plan.numbers_of_hosts) numbers.push_back(std::to_string(hosts));
    return "host        " + host::host_identity().name + ", number " + std::to_string(node.rank) + ": " +
           count_of(plan.ranks_here, "rank") + ", " + threads + "hosts       " + join(numbers, ", ") +
           " of them may train\n" + master;
  }
  const int first = node.rank * plan.ranks_here;
  const int last = first + plan.ranks_here - 1;
  return "host        " + host::host_identity().name + ", " + std::to_string(node.rank + 1) + " of " +
         std::to_string(node.nodes) + ": " + (last == first ? "rank " : "ranks ") + std::to_string(first) +
         (last == first ? "" : " to " + std::to_string(last)) + " of " + std::to_string(plan.ranks_here * node.nodes) +
         ", " + threads + master;
}

// What the keepers know of the run together. A keeper that comes later, in the place of a lost one, learns it from the
// others.
struct RunKept {
  int started = 0;              // the number of attempts so far
  int restarts = 0;             // since the last progress
  std::int64_t saved = 0;       // the batch of the last checkpoint before the last attempt
  std::string run_dir;          // empty: not known yet
  std::string cause;            // of the last failure
  std::vector<int> hosts = {};  // that trained in the last attempt
};

Json to_json(const RunKept& run) {
  return {{"started", run.started}, {"restarts", run.restarts}, {"saved", run.saved},
          {"run_dir", run.run_dir}, {"cause", run.cause},       {"hosts", run.hosts}};
}

RunKept run_kept_of(const Json& json) {
  return {.started = json.at("started").get<int>(),
          .restarts = json.at("restarts").get<int>(),
          .saved = json.at("saved").get<std::int64_t>(),
          .run_dir = json.at("run_dir").get<std::string>(),
          .cause = json.at("cause").get<std::string>(),
          .hosts = json.at("hosts").get<std::vector<int>>()};
}

// A signal that came while no rank ran.
struct Stopped {
  int signal;
};

class Keeper {
 public:
  Keeper(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables, bool restarts)
      : plan_(plan),
        node_(node),
        variables_(variables),
        most_restarts_(restarts ? plan.experiment.max_restarts : 0),
        host_(host::host_identity().name),
        status_(is_first() ? variables : rank::Variables{},
                [](const std::string& warning) { std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str()); }) {}

  ExitCode run() {
    try {
      meet();
      for (;;) {
        if (const auto code = attempt()) {
          status_.end(*code == ExitCode::kDone);
          return *code;
        }
        if (opens_) meet();
      }
    } catch (const Stopped& stopped) {
      if (keepers_ && !trains()) keepers_->leave();  // the others go on
      const bool goes_on_later = stopped.signal != SIGINT && last_saved() > 0;
      return goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted;
    }
  }

 private:
  bool is_first() const { return node_.rank == 0; }
  bool trains() const { return place_.rank >= 0; }

  // The ranks of all hosts have agreed on the end of the run before any of them ends like this.
  static bool is_over(const NodeEnd& end) { return !end.failed && end.code == ExitCode::kDone; }
  static bool has_lower_code(const NodeEnd& one, const NodeEnd& other) { return one.code < other.code; }

  void check() {
    if (const auto signal = signals_.next()) throw Stopped{*signal};
  }

  void meet() {
    keepers_.reset();
    rank::KeeperOptions options{.node = node_,
                                .host_name = host_,
                                .secret_file = {},
                                .network_interface = {},
                                .timeout = plan_.experiment.communication_timeout,
                                .log = make_stderr_logger()};
    options.node.least = plan_.numbers_of_hosts.front();
    if (std::exchange(opens_, false)) options.before = present_;
    if (const std::string* file = rank::find(variables_, "DTRAIN_RUN_SECRET_FILE")) options.secret_file = *file;
    if (const std::string* name = rank::find(variables_, "DTRAIN_NETWORK_INTERFACE")) options.network_interface = *name;
    const auto agree = [](const std::vector<Json>& all) {
      const auto known = std::max_element(all.begin(), all.end(), [](const Json& a, const Json& b) {
        return run_kept_of(a).started < run_kept_of(b).started;
      });
      return *known;
    };
    keepers_ = rank::Keepers::meet(options, to_json(run_), agree, [this] { check(); });
    run_ = run_kept_of(keepers_->agreed());
    if (is_first() && run_.started > 0) record_restart();
    take_place();
  }

  // Those of the hosts that have met train by whose ranks the batch divides. The others wait for a place.
  void take_place() {
    const std::vector<int>& present = keepers_->present();
    present_ = present.size();
    const std::vector<int> hosts(present.begin(), present.begin() + hosts_that_train(plan_, present.size()));
    const auto here = std::find(hosts.begin(), hosts.end(), node_.rank);
    place_ = node_;
    place_.nodes = static_cast<int>(hosts.size());
    place_.rank = here == hosts.end() ? -1 : static_cast<int>(here - hosts.begin());
    const std::vector<int> before = std::exchange(run_.hosts, hosts);
    if (run_.started > 0 && before.size() != hosts.size()) say_change(before);
    if (trains()) return;
    std::fprintf(stderr, "dtrain: %s waits for a place: the ranks of %s train, and those of more %s\n",
                 keepers_->name_of(node_.rank).c_str(), count_of(place_.nodes, "host").c_str(),
                 plan_.experiment.virtual_ranks > 0 ? "are more than the virtual ranks" : "do not divide the batch");
  }

  void say_change(const std::vector<int>& before) {
    const auto text_of_ranks = [&](const std::vector<int>& hosts) {
      const int count = static_cast<int>(hosts.size());
      return count_of(count * plan_.ranks_here, "rank") + " on " + count_of(count, "host");
    };
    const auto without = [](const std::vector<int>& hosts, const std::vector<int>& others) {
      std::vector<int> result;
      std::set_difference(hosts.begin(), hosts.end(), others.begin(), others.end(), std::back_inserter(result));
      return result;
    };
    const std::vector<int> gone = without(before, run_.hosts);
    const std::vector<int> come = without(run_.hosts, before);
    const std::vector<int>& changed = gone.empty() ? come : gone;
    const std::int64_t saved = last_saved();
    const char* const one = gone.empty() ? "takes part" : "has not come back";
    const char* const several = gone.empty() ? "take part" : "have not come back";
    const bool same_bits = plan_.experiment.virtual_ranks > 0;
    std::fprintf(stderr, "dtrain: host%s %s %s: the run %s with %s in place of %s; %s\n",
                 changed.size() == 1 ? "" : "s", ranges_text(changed, ", ").c_str(),
                 changed.size() == 1 ? one : several,
                 saved > 0 ? ("goes on from batch " + std::to_string(saved)).c_str() : "begins anew",
                 text_of_ranks(run_.hosts).c_str(), text_of_ranks(before).c_str(),
                 same_bits ? "virtual ranks keep the bits" : "another number of ranks gives other bits");
    if (!is_first()) return;
    write_event("hosts_changed", {{"hosts", run_.hosts},
                                  {"before", before},
                                  {"ranks", run_.hosts.size() * static_cast<std::size_t>(plan_.ranks_here)},
                                  {"step", saved}});
  }

  // Makes one attempt. Empty: another one follows. Else the exit code.
  std::optional<ExitCode> attempt() {
    const std::string name = std::to_string(run_.started);
    if (!trains()) return wait_for_place(name);
    NodeRanks ranks(plan_, place_, variables_, run_.run_dir, run_.started);
    ++run_.started;
    const NodeEnd end = ranks.wait(signals_, *keepers_, status_, recoveries_);
    memory_.hold(ranks.run_dir());
    noticed_ = ranks.failed_at().value_or(SteadyClock::now());
    std::string lost = keepers_->lost();
    if (lost.empty()) {
      try {
        keepers_->tell("end/" + name + "/" + std::to_string(place_.rank), to_json(end));
        if (is_first()) judge(name, ranks.run_dir());
        return follow_verdict(name) ? std::nullopt : std::optional(end.code);
      } catch (const CommError& error) {
        lost = keepers_->lost();
        if (lost.empty()) lost = error.what();
      }
    }
    return go_on_without(lost, end, ranks.run_dir());
  }

  // Hears whether another attempt follows. False: the run has ended.
  bool follow_verdict(const std::string& name) {
    const Json verdict = hear("verdict/" + name);
    run_ = run_kept_of(verdict.at("run"));
    code_ = verdict.at("code").get<ExitCode>();
    const bool restarts = verdict.at("restarts").get<bool>();
    opens_ = restarts && present_ < static_cast<std::size_t>(node_.nodes);
    if (!restarts || opens_) keepers_->leave();
    if (!restarts) return false;
    say_restart();
    if (is_first() && !opens_) record_restart();
    return true;
  }

  // As attempt(), on a host that has no ranks.
  std::optional<ExitCode> wait_for_place(const std::string& name) {
    ++run_.started;
    try {
      return follow_verdict(name) ? std::nullopt : std::optional(code_);
    } catch (const CommError& error) {
      const std::string lost = keepers_->lost();
      return go_on_without(lost.empty() ? error.what() : lost, {.failed = true}, {});
    }
  }

  // A host is lost: the run goes on once its keeper, or another one in its place, has met the others.
  std::optional<ExitCode> go_on_without(const std::string& lost, const NodeEnd& end, const fs::path& run_dir) {
    if (!run_dir.empty()) run_.run_dir = run_dir.string();
    if (is_over(end)) return end.code;
    if (end.stopped) return end.failed ? end.code : std::max(end.code, ExitCode::kPreempted);
    if ((end.failed && !end.cause.empty() && !end.may_pass) || !count_restart(lost)) {
      std::fprintf(stderr, "dtrain: the run failed: %s\n", lost.c_str());
      keep_what_is_in_memory();
      return ExitCode::kRunFailed;
    }
    say_restart();
    meet();
    return std::nullopt;
  }

  // On host 0: decides, from how the attempt has ended on all hosts, whether another one follows.
  void judge(const std::string& name, const fs::path& run_dir) {
    if (!run_dir.empty()) run_.run_dir = run_dir.string();
    std::vector<NodeEnd> ends;
    for (int host = 0; host < place_.nodes; ++host) {
      const std::string key = "end/" + name + "/" + std::to_string(host);
      const bool any_failed = std::any_of(ends.begin(), ends.end(), [](const NodeEnd& end) { return end.failed; });
      const std::string who = keepers_->name_of(run_.hosts.at(static_cast<std::size_t>(host)));
      ends.push_back(node_end_of(hear(key, any_failed ? std::optional(who) : std::nullopt)));
    }
    bool failed = false;
    bool stopped = false;
    bool over = false;
    const NodeEnd* cause = nullptr;  // one that does not pass counts before one that may
    for (const NodeEnd& end : ends) {
      failed = failed || end.failed;
      stopped = stopped || end.stopped;
      over = over || is_over(end);
      if (!end.cause.empty() && (!cause || (cause->may_pass && !end.may_pass))) cause = &end;
    }
    const std::string why = cause ? cause->cause : "the connection between the hosts broke";
    failed = failed && !over;
    for (const NodeEnd& end : ends) {
      for (const Json& hang : end.hangs) write_event("rank_hangs", hang);
    }
    const bool restarts = failed && !stopped && (!cause || cause->may_pass) && count_restart(why);
    ExitCode code = cause && !cause->may_pass ? cause->code : ExitCode::kRunFailed;
    if (failed && !restarts) {
      record_end(why, code);
      keep_what_is_in_memory();
    }
    if (!failed) code = std::max_element(ends.begin(), ends.end(), has_lower_code)->code;
    keepers_->tell("verdict/" + name, {{"restarts", restarts}, {"code", code}, {"run", to_json(run_)}});
  }

  // Waits for a value of another keeper. CommError once a host is lost, or if `limited` has not told it after a while.
  Json hear(const std::string& key, const std::optional<std::string>& limited = {}) {
    const auto began = SteadyClock::now();
    for (;;) {
      if (auto value = keepers_->hear(key, kHear)) return *std::move(value);
      check();
      if (!limited || SteadyClock::now() - began < kEndPatience) continue;
      throw CommError(*limited + " is lost: its ranks have not ended within " + format_duration(kEndPatience) +
                      " of the failure");
    }
  }

  // Returns false if the run has used its restarts. A checkpoint of a later batch sets the count to 0.
  bool count_restart(const std::string& cause) {
    run_.cause = cause;
    const std::int64_t saved = last_saved();
    if (saved > run_.saved) run_.restarts = 0;
    if (run_.restarts >= most_restarts_) return false;
    run_.saved = saved;
    ++run_.restarts;
    return true;
  }

  // The batch of the run's last checkpoint, or of the last whole state in the memory of this host; 0: there is none, or
  // the folder is not known.
  std::int64_t last_saved() const {
    std::error_code code;
    const rank::RunFolder folder{run_.run_dir};
    if (run_.run_dir.empty() || !fs::exists(folder.plan(), code)) return 0;
    return std::max(rank::read_state(folder).last_saved.value_or(0), memory_.newest(folder.path));
  }

  void keep_what_is_in_memory() const {
    const auto saved = is_first() ? memory_.save(run_.run_dir) : std::nullopt;
    if (saved) write_event("memory_saved", {{"path", saved->string()}});
  }

  void say_restart() const {
    std::fprintf(stderr, "dtrain: attempt %d failed: %s\ndtrain: restart %d of %d\n", run_.started, run_.cause.c_str(),
                 run_.restarts, most_restarts_);
  }

  void record_restart() {
    recoveries_.fail(run_.cause, noticed_);
    write_event("attempt_failed",
                {{"cause", run_.cause}, {"step", recoveries_.batches_done()}, {"restart", run_.restarts}});
  }

  void record_end(const std::string& cause, ExitCode code) const {
    write_event("run_ended", rank::run_ended(code, cause));
  }

  // The run does not depend on its events.
  void write_event(const std::string& event, Json fields) const {
    std::error_code code;
    const rank::RunFolder folder{run_.run_dir};
    if (run_.run_dir.empty() || !fs::exists(folder.plan(), code)) return;
    if (event == "attempt_failed") fields["attempt"] = rank::attempt_number(folder);
    try {
      rank::EventLog(folder.events(), clock_, -1, host_).write(event, fields);
    } catch (const SystemError& error) {
      std::fprintf(stderr, "dtrain: warning: events are missing from the run's folder: %s\n", describe(error).c_str());
    }
  }

  const NodePlan& plan_;
  const rank::NodeEnvironment& node_;
  const rank::Variables& variables_;
  const int most_restarts_;
  const std::string host_;
  const SystemClock clock_;
  rank::TrainerStatus status_;
  rank::LaunchSignals signals_;
  RunKept run_;
  rank::NodeEnvironment place_;      // of this host among those that train; rank -1: it waits for a place
  std::size_t present_ = 0;          // hosts at the last meeting
  bool opens_ = false;               // all meet again, as hosts that were absent may be there
  ExitCode code_ = ExitCode::kDone;  // with which the run has ended on all hosts
  NodeMemory memory_{node_.rank, most_restarts_ > 0 && plan_.experiment.recovery.keeps_states()};
  NodeRecoveries recoveries_{[this](const std::string& event, const Json& fields) { write_event(event, fields); }};
  SteadyClock::time_point noticed_ = SteadyClock::now();  // the end of the last attempt
  std::unique_ptr<rank::Keepers> keepers_;
};

}  // namespace

ExitCode launch_node(const LaunchRequest& request, const rank::NodeEnvironment& node,
                     const rank::Variables& variables) {
  check_request(request);
  const NodePlan plan = plan_node(request, node, variables);
  if (request.dry_run) {
    std::vector<std::string> shown;
    for (const auto* words : {&plan.command, &plan.arguments}) {
      for (const std::string& word : *words) shown.push_back(config::shown_override(word));
    }
    rank::print(text_of(plan, node) + "command     " + join(shown, " ") + "\n");
    return ExitCode::kDone;
  }
  if (const std::string warning = script_warning(plan.command); !warning.empty()) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  rank::print(text_of(plan, node));
  // The weights of a mock run mean nothing, so it cannot go on.
  return Keeper(plan, node, variables, /*restarts=*/!request.mock.any()).run();
}

}  // namespace dtrain::launcher
