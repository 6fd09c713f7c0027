// The records of a rank besides its log: batches (through the profiling agent of its host), the offset of its clock
// from rank 0's, and the number of lost records. The training thread makes all calls.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/profile/agent_process.h"
#include "dtrain/profile/recorder.h"
#include "membership.h"
#include "rank_output.h"

namespace dtrain::run {

class Recording {
 public:
  struct Options {
    std::string agent_socket;
    std::unique_ptr<profile::KeptAgent> agent;  // if this rank has started it
    std::function<void(pid_t)> agent_started;   // called after the agent was started again
    Json header;                                // the first line of the dump
    Nanoseconds process_started{0};             // the time since then counts as initialization
  };
  // Connects to the profiling agent and compares the clocks, which is collective. The referenced objects must outlive
  // this object. Throws as profile::Recorder does.
  Recording(Options options, Membership& membership, RankEvents& events, const Clock& clock, Logger log);
  ~Recording();

  profile::Recorder& recorder() { return recorder_; }

  // Called in every step. Records a new comparison of clocks, and warns if records are lost or the profiling agent has
  // ended, which is then started again by its starter.
  void check();
  // Compares the clocks a last time and waits until all records are on disk; warns where that is not confirmed in time.
  void finish();
  // Does the same for a rank that fails, without comparing clocks.
  void flush_after_failure();
  // Writes the number of lost records as an event, which the summary counts: the dump may lack that line.
  void report_losses();

 private:
  void record_clock(const std::optional<comm::ClockOffset>& compared);
  void look_after_agent();
  void flush(std::chrono::milliseconds timeout);
  void warn_of_losses();

  Membership& membership_;
  RankEvents& events_;
  const Logger log_;
  const std::optional<comm::ClockOffset> first_comparison_;
  std::unique_ptr<profile::KeptAgent> agent_;  // it outlives this process
  const std::function<void(pid_t)> agent_started_;
  profile::Recorder recorder_;
  bool agent_is_here_ = true;
  bool warned_ = false;
};

}  // namespace dtrain::run
