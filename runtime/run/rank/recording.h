// What a rank records besides its log: batches (through the profiling agent of its host), the offset of its clock from
// rank 0's, and the number of lost records. The training thread makes all calls.
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
    Nanoseconds process_started{0};  // the time since then counts as initialization
  };
  // Connects to the profiling agent and compares the clocks, which is collective. What the references refer to must
  // outlive this object. Throws as profile::Recorder does.
  Recording(const Options& options, Membership& membership, RankEvents& events, const Clock& clock, Logger log);

  profile::Recorder& recorder() { return recorder_; }

  // Called in every step. Records a new comparison of clocks, warns once if records are lost, and throws if the
  // profiling agent has ended.
  void check();
  // Compares the clocks a last time and waits until all records are on disk. Throws if the profiling agent has ended or
  // does not confirm in time.
  void finish();
  // The same for a rank that fails: logs that records were not confirmed instead of throwing.
  void flush_after_failure();
  // Writes the number of lost records as an event, which the summary counts: the dump may lack that line.
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
