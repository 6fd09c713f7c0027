#include "recording.h"

#include <chrono>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::run {
namespace {

// The time limit to compare clocks with rank 0: the few round trips take this long only if something else is wrong.
constexpr std::chrono::seconds kClockTimeout{2};
constexpr std::chrono::seconds kFlushTimeout{10};
constexpr std::chrono::seconds kFlushTimeoutAfterFailure{2};

profile::Recorder::Options recorder_options(const Recording::Options& options, const comm::World& world,
                                            const std::optional<comm::ClockOffset>& compared) {
  profile::Recorder::Options result{
      .rank = world.rank, .world_size = world.size, .agent_socket = options.agent_socket, .header = options.header};
  if (compared) {
    result.header["rank_0_clock"] = {{"time_ns", compared->time.count()},
                                     {"offset_ns", compared->offset.count()},
                                     {"error_ns", compared->error.count()}};
  }
  return result;
}

}  // namespace

Recording::Recording(Options options, Membership& membership, RankEvents& events, const Clock& clock, Logger log)
    : membership_(membership),
      events_(events),
      log_(std::move(log)),
      first_comparison_(membership.control().measure_clock(kClockTimeout)),
      agent_(std::move(options.agent)),
      agent_started_(std::move(options.agent_started)),
      recorder_(recorder_options(options, membership.world(), first_comparison_), clock, options.process_started) {
  record_clock(first_comparison_);
}

Recording::~Recording() {
  if (agent_) agent_->detach();
}

void Recording::check() {
  record_clock(membership_.control().take_clock());
  look_after_agent();
  warn_of_losses();
}

void Recording::finish() {
  record_clock(membership_.control().measure_clock(kClockTimeout));
  recorder_.mark(profile::RunMark::kFinalizationEnd);
  flush(kFlushTimeout);
}

void Recording::flush_after_failure() {
  flush(kFlushTimeoutAfterFailure);
}

void Recording::flush(std::chrono::milliseconds timeout) {
  try {
    look_after_agent();
    recorder_.flush(timeout);
  } catch (const std::exception& lost) {
    log_->warn("the last records were not confirmed: {}", lost.what());
    events_.try_write("records_unconfirmed", {{"reason", lost.what()}});
  }
}

void Recording::report_losses() {
  warn_of_losses();
  if (recorder_.lost() == 0) return;
  events_.try_write("records_lost", {{"count", recorder_.lost()}, {"reason", recorder_.write_error().value_or("")}});
}

void Recording::record_clock(const std::optional<comm::ClockOffset>& compared) {
  if (!compared) return;
  recorder_.clock({compared->time.count(), compared->offset.count(), compared->error.count(), compared->round_trips});
}

void Recording::look_after_agent() {
  const bool is_here = recorder_.agent_is_here();
  if (agent_ && !is_here) {
    if (const auto change = agent_->look()) {
      log_->warn("{}", change->text());
      if (change->ended)
        events_.try_write("agent_ended", {{"agent", agent_->id()}, {"status", change->ended->describe()}});
      if (change->started > 0) agent_started_(change->started);
    }
  }
  if (is_here == std::exchange(agent_is_here_, is_here) || membership_.world().local_rank != 0) return;
  if (is_here) {
    log_->info("the profiling agent of this host is back");
  } else {
    log_->warn(
        "the profiling agent of this host has ended or does not answer; training goes on, records wait in memory until "
        "it "
        "is back (see logs/agent-*.log in the run's folder)");
  }
}

// The profiling agent reports a loss to one rank of the host.
void Recording::warn_of_losses() {
  const auto& error = recorder_.write_error();
  if (!error || std::exchange(warned_, true)) return;
  log_->warn(
      "records of this host's ranks are missing from the profile: {}; training goes on, and what is lost is counted",
      *error);
}

}  // namespace dtrain::run
