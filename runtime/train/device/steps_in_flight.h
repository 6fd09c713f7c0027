// How far the host may be ahead of its GPU. The host hands work over and does not wait for it, except here: when it has
// handed over a batch, it waits until at most kMost batches are unfinished. Values that the host needs are copied
// without waiting and read when their batch has ended; so all ranks read them in the same round.
//
// On a CPU a batch has ended when its code has: nothing waits, and values are read at once.
// Training thread.
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
  // Of the batches that have been handed over, how many the device may still have to finish.
  static constexpr int kMost = 2;

  // `communicator`: of the device. It is moved on while the host waits, and says when a peer has failed.
  StepsInFlight(c10::Device device, comm::Communicator& communicator, profile::Recorder& recorder);
  ~StepsInFlight();
  StepsInFlight(const StepsInFlight&) = delete;
  StepsInFlight& operator=(const StepsInFlight&) = delete;

  // Calls `use` with the values of a tensor of any type and device, as doubles: at once where it lies on the host, else
  // once the batch under way has ended, from end_batch() or finish_oldest().
  using Use = std::function<void(std::span<const double>)>;
  void read(const at::Tensor& values, Use use);

  // The work of a batch has been handed over whole. Waits until at most kMost batches are unfinished, and reads the
  // values of those that it waited for. CommError as Work::wait().
  void end_batch();
  // What has been handed over since end_batch() belongs to the batch that ended there.
  void extend_batch();
  // Waits for the oldest batch that is unfinished, if there is one, and reads its values.
  void finish_oldest();
  void finish_all();
  // Waits until the device has done all that was handed over. Values are read when their batch's turn comes.
  void wait_for_all();

  // A value of batch b is read at the end of batch b + lag().
  std::int64_t lag() const { return device_.is_cpu() ? 0 : kMost; }

 private:
  struct Reading {
    at::Tensor copy;  // pinned
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
  std::vector<Reading> readings_;  // of the batch under way
  std::deque<Flight> flights_;     // oldest first
};

}  // namespace dtrain::train
