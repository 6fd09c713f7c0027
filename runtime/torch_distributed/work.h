// The handle of one operation of a process group, as PyTorch wants it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "dtrain/comm/communicator.h"
#include "dtrain/torch_distributed/observer.h"
#include "flight_recorder.h"

namespace dtrain::torch_distributed {

class Lane;
struct BackwardPass;
using Tensors = std::vector<at::Tensor>;
using std::chrono::milliseconds;

// An operation is made of those of a communicator or a mailbox, which its lane advances. It is over when all of them
// are complete and its outputs have been written.
//
// Its future is completed, and with it the callbacks are called, by a thread that waits for the operation, or else by
// one of the threads of Progress: callbacks may issue operations and wait for them. A future that was asked for within
// a backward pass is completed at the end of the pass by the thread of the pass, in the order of asking. So callbacks
// that issue collectives (PowerSGD's) issue them in the same order on all ranks. A caller that has seen the operation
// end, by wait() or isCompleted(), finds the future complete.
class GroupWork final : public c10d::Work {
 public:
  // What an operation is made of, set while it is issued.
  struct Parts {
    std::vector<comm::Work> works;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // at the end the first of each gets what the second has
    std::function<void()> after;                            // called after that
    Tensors kept;                                           // memory that must live as long
  };

  struct Setup {
    std::shared_ptr<Lane> lane;
    int rank = 0;  // in the group
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = "";  // in PyTorch's profiler, and in errors
    Tensors inputs, outputs;
    milliseconds timeout{};
    std::vector<int> members;  // of the group, as the lane numbers ranks; empty: 0, 1, …
    int group_size = 1;
  };
  explicit GroupWork(Setup setup);

  bool isCompleted() override;
  bool wait(milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}  // Work::wait() calls it with its mutex held
  void abort() override;
  int sourceRank() const override;
  Tensors result() override { return outputs_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  Parts& parts() { return parts_; }
  void set_record(FlightEntry entry, std::uint64_t sequence) {
    entry_ = std::move(entry);
    sequence_ = sequence;
  }
  // Called by the lane, with its mutex held: true once all operations are complete.
  bool test();
  void set_error(std::exception_ptr error) { error_ = std::move(error); }
  std::vector<comm::MissingRank> missing() const;

  // Called once, without a mutex, by the thread that has found the operations complete: writes the outputs.
  void end();
  bool is_over() const { return over_.load(std::memory_order_acquire); }
  // True if there is a future to be completed now: not one that waits for the end of a backward pass, unless the thread
  // of the pass is `blocked`, perhaps because it waits for the future.
  bool has_future(bool blocked = false);
  bool is_of_backward();  // its future waits for the end of a backward pass
  // The operation is over, and a caller may see it: the future is complete when this returns.
  void complete_future();

 private:
  friend class Waiting;

  void write_outputs();
  void tell(Observer& observer) const;
  void give_up(const std::string& why);
  std::string waits_in_vain() const;  // why; empty: no rank that it waits for is gone
  // Says what the operation waits for.
  std::string text_of(const std::string& why) const;

  const std::shared_ptr<Lane> lane_;
  const std::string title_;
  const Tensors outputs_;
  const milliseconds timeout_;
  const std::vector<int> members_;
  Parts parts_;
  std::uint64_t sequence_ = 0;
  FlightEntry entry_;
  int source_ = -1;
  std::exception_ptr error_;
  std::atomic<bool> over_{false};

  // For an observer.
  EndedOperation facts_;
  std::atomic<std::int64_t> waited_ns_{0}, waited_since_ns_{0};

  std::mutex future_mutex_;  // guards what follows
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool completed_future_ = false;       // or it will be complete when it is asked for
  std::shared_ptr<BackwardPass> pass_;  // at whose end the future is completed; null: none
};

using WorkPtr = c10::intrusive_ptr<GroupWork>;

// While it lives, the calling thread waits for the work or carries it out.
class Waiting {
 public:
  explicit Waiting(GroupWork& work);
  ~Waiting();
  Waiting& operator=(Waiting&&) = delete;

 private:
  GroupWork& work_;
  Observer* const observer_;  // null: nobody counts it
};

// Several operations as one.
class JoinedWork final : public c10d::Work {
 public:
  JoinedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace dtrain::torch_distributed
