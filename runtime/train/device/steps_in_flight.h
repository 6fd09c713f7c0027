// Limits how far the host is ahead of its GPU. The host waits for submitted work only here: after each batch, until at
// most kMost batches are unfinished. Values for the host are copied without waiting and read when their batch has
// ended, so all ranks read them in the same round.
//
// On a CPU nothing waits, and values are read at once. Training thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::train {

class StepsInFlight {
 public:
  // Largest number of submitted batches that the device has not finished.
  static constexpr int kMost = 2;

  // `communicator`: the device's. The host drives its progress while it waits, and gets its errors of failed peers.
  StepsInFlight(c10::Device device, comm::Communicator& communicator, profile::Recorder& recorder);
  ~StepsInFlight();
  StepsInFlight& operator=(StepsInFlight&&) = delete;

  // Calls `use` with the values of a tensor of any type and device, as doubles: at once for a tensor on the host,
  // otherwise when the current batch has ended, in end_batch() or finish_oldest().
  using Use = std::function<void(std::span<const double>)>;
  void read(const at::Tensor& values, Use use);

  // Calls `use` when the current batch has ended; on a CPU at once.
  void when_ended(std::function<void()> use);

  // Ends a batch whose work has been submitted. Waits until at most kMost batches are unfinished, and reads the values
  // of the batches that it waited for. CommError: those of Work::wait().
  void end_batch();
  // Adds the work since end_batch() to the batch that ended there.
  void extend_batch();
  // Waits for the oldest unfinished batch, if any, and reads its values.
  void finish_oldest();
  void finish_all();
  // Waits until the device has finished all submitted work. Does not read values.
  void wait_for_all();

  // A value of batch b is read at the end of batch b + lag().
  std::int64_t lag() const { return device_.is_cpu() ? 0 : kMost; }

 private:
  struct Reading {
    at::Tensor copy;  // pinned; undefined: no value
    Use use;
  };
  struct Flight {
    c10::Event ended;
    std::vector<Reading> readings;
  };
  void wait_for(const c10::Event& ended);

  const c10::Device device_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  std::vector<Reading> readings_;  // of the current batch
  std::deque<Flight> flights_;     // oldest first
};

}  // namespace dtrain::train
