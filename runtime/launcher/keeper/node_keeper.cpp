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
#include "keeper/node_hosts.h"
#include "keeper/node_memory.h"
#include "keeper/node_ranks.h"
#include "keeper/run_kept.h"

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

std::string plan_text(const NodePlan& plan, const rank::NodeEnvironment& node) {
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

// A signal that came while no rank ran.
struct Stopped {
  int signal;
};

class Keeper {
 public:
  Keeper(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables, bool restarts)
      : plan_(plan),
        variables_(variables),
        most_restarts_(restarts ? plan.experiment.max_restarts : 0),
        status_(variables,
                [](const std::string& warning) { std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str()); }),
        memory_(node.rank, most_restarts_ > 0 && plan.experiment.recovery.keeps_states()),
        hosts_(plan, node, variables) {}

  ExitCode run() {
    try {
      meet();
      for (;;) {
        if (const auto code = attempt()) {
          if (hosts_.decides()) status_.end(*code == ExitCode::kDone);
          return *code;
        }
        if (opens_) meet();
      }
    } catch (const Stopped& stopped) {
      if (hosts_.have_met() && !hosts_.trains()) hosts_.keepers().leave();  // the others go on
      const bool goes_on_later = stopped.signal != SIGINT && last_saved() > 0;
      return goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted;
    }
  }

 private:
  // The ranks of all hosts have agreed on the end of the run before any of them ends like this.
  static bool is_over(const NodeEnd& end) { return !end.failed && end.code == ExitCode::kDone; }
  static bool has_lower_code(const NodeEnd& one, const NodeEnd& other) { return one.code < other.code; }

  void check() {
    if (const auto signal = signals_.next()) throw Stopped{*signal};
  }

  void meet() {
    opens_ = false;
    const std::vector<int> before = hosts_.meet(run_, [this] { check(); });
    if (run_.started > 0) {
      if (hosts_.decides() && !run_.paused) record_restart();
      if (before.size() != run_.hosts.size()) say_change(before);
    }
    run_.paused = false;
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
    std::fprintf(
        stderr, "dtrain: host%s %s %s: the run %s with %s in place of %s; %s\n", changed.size() == 1 ? "" : "s",
        ranges_text(changed, ", ").c_str(), changed.size() == 1 ? one : several,
        saved > 0 ? ("goes on from batch " + std::to_string(saved)).c_str() : "begins anew",
        text_of_ranks(run_.hosts).c_str(), text_of_ranks(before).c_str(),
        same_bits ? "virtual ranks keep the bits" : "the batches stay, and another number of ranks gives other bits");
    if (!hosts_.decides()) return;
    write_event("hosts_changed", {{"hosts", run_.hosts},
                                  {"before", before},
                                  {"ranks", run_.hosts.size() * static_cast<std::size_t>(plan_.ranks_here)},
                                  {"step", saved}});
  }

  // Makes one attempt. Empty: another one follows. Else the exit code.
  std::optional<ExitCode> attempt() {
    const std::string name = std::to_string(run_.started);
    if (!hosts_.trains()) return wait_for_place(name);
    rank::Keepers& keepers = hosts_.keepers();
    NodeRanks ranks(plan_, hosts_.place(), variables_, run_.run_dir, run_.started);
    ++run_.started;
    const NodeEnd end = ranks.wait(signals_, keepers, status_, recoveries_,
                                   [&](bool trains) { return hosts_.look_for_others(trains); });
    memory_.hold(ranks.run_dir());
    noticed_ = ranks.failed_at().value_or(SteadyClock::now());
    std::string lost = keepers.lost();
    if (lost.empty()) {
      try {
        keepers.tell("end/" + name + "/" + std::to_string(hosts_.place().rank), to_json(end));
        if (hosts_.decides()) judge(name, ranks.run_dir());
        return follow_verdict(name) ? std::nullopt : std::optional(end.code);
      } catch (const CommError& error) {
        lost = keepers.lost();
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
    opens_ = restarts && (run_.paused || !hosts_.are_all_present());
    if (!restarts || opens_) hosts_.keepers().leave();
    if (!restarts) return false;
    hosts_.part(run_.paused ? verdict.at("others") : Json());
    say_restart();
    if (hosts_.decides() && !opens_) record_restart();
    return true;
  }

  // As attempt(), on a host that has no ranks.
  std::optional<ExitCode> wait_for_place(const std::string& name) {
    ++run_.started;
    try {
      return follow_verdict(name) ? std::nullopt : std::optional(code_);
    } catch (const CommError& error) {
      const std::string lost = hosts_.keepers().lost();
      return go_on_without(lost.empty() ? error.what() : lost, {.failed = true}, {});
    }
  }

  // A host is lost: the run goes on without it, or once its keeper, or another one in its place, has met the others.
  std::optional<ExitCode> go_on_without(const std::string& lost, const NodeEnd& end, const fs::path& run_dir) {
    if (!run_dir.empty()) run_.run_dir = run_dir.string();
    if (is_over(end)) return end.code;
    if (end.stopped) return end.failed ? end.code : std::max(end.code, ExitCode::kPreempted);
    hosts_.lose(noticed_);
    run_.paused = false;
    const bool fails = plan_.on_host_loss == config::OnHostLoss::kFail;
    if (fails || (end.failed && !end.cause.empty() && !end.may_pass) || !count_restart(lost)) {
      end_without_lost(lost + (fails ? "; recovery.on_host_loss is fail" : ""));
      return ExitCode::kRunFailed;
    }
    say_restart();
    try {
      meet();
    } catch (const CommError& error) {
      end_without_lost(lost + "; " + describe(error));
      return ExitCode::kRunFailed;
    }
    return std::nullopt;
  }

  // The run ends on each host that is left by itself.
  void end_without_lost(const std::string& cause) {
    std::fprintf(stderr, "dtrain: the run failed: %s\n", cause.c_str());
    if (!hosts_.decides_without_lost()) return;
    record_end(cause, ExitCode::kRunFailed);
    keep_what_is_in_memory();
  }

  // On rank 0's host: decides, from how the attempt has ended on all hosts, whether another one follows.
  void judge(const std::string& name, const fs::path& run_dir) {
    if (!run_dir.empty()) run_.run_dir = run_dir.string();
    std::vector<NodeEnd> ends;
    for (int host = 0; host < hosts_.place().nodes; ++host) {
      const std::string key = "end/" + name + "/" + std::to_string(host);
      const bool any_failed = std::any_of(ends.begin(), ends.end(), [](const NodeEnd& end) { return end.failed; });
      const std::string who = hosts_.keepers().name_of(run_.hosts.at(static_cast<std::size_t>(host)));
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
    run_.paused = !hosts_.order().is_null() && !failed && !stopped && !over;
    const bool restarts = run_.paused || (failed && !stopped && (!cause || cause->may_pass) && count_restart(why));
    ExitCode code = cause && !cause->may_pass ? cause->code : ExitCode::kRunFailed;
    if (failed && !restarts) {
      record_end(why, code);
      keep_what_is_in_memory();
    }
    if (run_.paused) write_event("attempt_stopped", {{"reason", rank::StopRequests::kPaused}});
    if (!failed) code = std::max_element(ends.begin(), ends.end(), has_lower_code)->code;
    hosts_.keepers().tell("verdict/" + name,
                          {{"restarts", restarts}, {"code", code}, {"run", to_json(run_)}, {"others", hosts_.order()}});
  }

  // Waits for a value of another keeper. CommError once a host is lost, or if `limited` has not told it after a while.
  Json hear(const std::string& key, const std::optional<std::string>& limited = {}) {
    const auto began = SteadyClock::now();
    for (;;) {
      if (auto value = hosts_.keepers().hear(key, kHear)) return *std::move(value);
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

  // Of one host.
  void keep_what_is_in_memory() const {
    if (const auto saved = memory_.save(run_.run_dir)) write_event("memory_saved", {{"path", saved->string()}});
  }

  void say_restart() const {
    if (run_.paused) {
      std::fprintf(stderr, "dtrain: %s: the run has saved, and goes on with them\n", rank::StopRequests::kPaused);
      return;
    }
    std::fprintf(stderr, "dtrain: attempt %d failed: %s\ndtrain: restart %d of %d\n", run_.started, run_.cause.c_str(),
                 run_.restarts, most_restarts_);
  }

  void record_restart() {
    recoveries_.fail(run_.run_dir, run_.cause, noticed_);
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
    if (event.starts_with("attempt_")) fields["attempt"] = rank::attempt_number(folder);
    try {
      rank::EventLog(folder.events(), clock_, -1, host_).write(event, fields);
    } catch (const SystemError& error) {
      std::fprintf(stderr, "dtrain: warning: events are missing from the run's folder: %s\n", describe(error).c_str());
    }
  }

  const NodePlan& plan_;
  const rank::Variables& variables_;
  const int most_restarts_;
  const std::string host_ = host::host_identity().name;
  const SystemClock clock_;
  rank::TrainerStatus status_;
  rank::LaunchSignals signals_;
  RunKept run_;
  bool opens_ = false;               // all meet again, as hosts that were absent may be there
  ExitCode code_ = ExitCode::kDone;  // with which the run has ended on all hosts
  NodeMemory memory_;
  NodeRecoveries recoveries_{[this](const std::string& event, const Json& fields) { write_event(event, fields); }};
  SteadyClock::time_point noticed_ = SteadyClock::now();  // the end of the last attempt
  NodeHosts hosts_;
};

}  // namespace

ExitCode launch_node(const LaunchRequest& request, const rank::NodeEnvironment& node,
                     const rank::Variables& variables) {
  check_request(request);
  const NodePlan plan = plan_node(request, node, variables);
  rank::NodeEnvironment kept = node;
  kept.least = plan.least_hosts;
  if (request.dry_run) {
    std::vector<std::string> shown;
    for (const auto* words : {&plan.command, &plan.arguments}) {
      for (const std::string& word : *words) shown.push_back(config::shown_override(word));
    }
    rank::print(plan_text(plan, kept) + "command     " + join(shown, " ") + "\n");
    return ExitCode::kDone;
  }
  if (const std::string warning = script_warning(plan.command); !warning.empty()) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  rank::print(plan_text(plan, kept));
  // The weights of a mock run mean nothing, so it cannot go on.
  return Keeper(plan, kept, variables, /*restarts=*/!request.mock.any()).run();
}

}  // namespace dtrain::launcher
