// What a rank records beside its log: steps through the agent of its host, how its clock compares with rank 0's, and
// how much could not be written. The training thread calls everything.
#pragma once

#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/profile/recorder.h"
#include "rank/membership.h"
#include "rank/rank_events.h"

namespace dtrain::run {

class Recording {
 public:
  struct Options {
    std::string agent_socket;
    Json header;                     // the first line of the dump
    Nanoseconds process_started{0};  // time since then counts as initialization
  };
  // Connects to the agent and compares the clocks, which is collective. Everything it is given must outlive it. The
  // errors of profile::Recorder.
  Recording(const Options& options, Membership& membership, RankEvents& events, const Clock& clock, Logger log);

  profile::Recorder& recorder() { return recorder_; }

  // For every step. Records a new comparison of clocks, warns once when records are lost, and throws when the agent has
  // ended.
  void check();
  // Compares the clocks a last time and waits until everything is on disk. Throws when the agent has ended or does not
  // confirm in time.
  void finish();
  // The same for a rank that fails: logs what was not confirmed.
  void flush_after_failure();
  // Writes how many records were lost as an event, which the summary counts: the dump itself may lack that line.
  void report_losses();

 private:
  void record_clock(const std::optional<comm::ClockOffset>& compared);
  void throw_if_agent_ended();
  void warn_of_losses();

  Membership& membership_;
  RankEvents& events_;
  const Logger log_;
  const std::optional<comm::ClockOffset> first_comparison_;
  profile::Recorder recorder_;
  bool warned_ = false;
};

}  // namespace dtrain::run
