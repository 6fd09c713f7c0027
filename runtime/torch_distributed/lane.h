// Operations that wait for their end: those of a group's communicator, or the messages of a world.
//
// A communicator and a mailbox allow one thread at a time, so each has a mutex here. Any thread may advance a lane.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "work.h"

namespace dtrain::torch_distributed {

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  virtual ~Lane() = default;

  // Calls `issue`, which gives the work its operations. Throws what has ended the lane, or what `issue` throws.
  void submit(const WorkPtr& work, const std::function<void()>& issue);
  // Advances the operations. Those that have ended are moved to `ended`, whose end() the caller has to call.
  void advance(std::vector<WorkPtr>& ended);
  // The same, unless another thread is at it.
  void try_advance(std::vector<WorkPtr>& ended);
  // True while advance() has something to do.
  bool busy() const { return busy_.load(); }
  // Ends every operation with this error, and those to come.
  void fail(const std::exception_ptr& error, std::vector<WorkPtr>& ended);
  std::exception_ptr error() const;
  // Ends every operation with this error, and lets go of what carries them. Works may outlive that.
  void close(const std::string& cause, std::vector<WorkPtr>& ended);
  // Returns the ranks that a work waits for, as this lane numbers them.
  std::vector<comm::MissingRank> missing(const GroupWork& work) const;

  // Ends the operations of the peers, too. Any thread.
  virtual void abort(const std::string& cause) = 0;
  virtual comm::PeerState state_of(int rank) const = 0;
  // True if the rank's process is known to have ended.
  virtual bool has_ended(int rank) const = 0;
  // Returns the number by which PyTorch's programs know the rank.
  virtual int name_of(int rank) const = 0;

 protected:
  // Called with the mutex held.
  virtual void collect(std::vector<WorkPtr>& ended) = 0;
  virtual bool owes() const { return false; }  // the peers need progress of this rank, which has no operation left
  // Returns what carries the operations, which is destroyed after the mutex has been given back.
  virtual std::shared_ptr<void> release() = 0;

  mutable std::mutex mutex_;
  std::deque<WorkPtr> works_;  // in the order of issue

 private:
  void advance_locked(std::vector<WorkPtr>& ended);
  void fail_locked(const std::exception_ptr& error, std::vector<WorkPtr>& ended);

  std::atomic<bool> busy_{false};
  std::exception_ptr error_;
};

}  // namespace dtrain::torch_distributed
