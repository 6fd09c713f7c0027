// The messages between the ranks of a world.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/comm/mailbox.h"
#include "lane.h"
#include "processes.h"

namespace dtrain::torch_distributed {

class MailLane final : public Lane {
 public:
  MailLane(comm::ControlPlane& control, std::shared_ptr<const Processes> processes,
           std::unique_ptr<comm::Mailbox> mailbox, std::shared_ptr<FlightRecorder> flight, Logger log)
      : control_(control), processes_(std::move(processes)), mailbox_(std::move(mailbox)) {
    flight_ = std::move(flight);
    log_ = std::move(log);
  }

  comm::Mailbox& mailbox() { return *mailbox_; }  // within submit()
  void abort(const std::string& cause) override {
    const std::scoped_lock lock(mailbox_mutex_);
    if (mailbox_) mailbox_->abort(cause);
  }
  comm::PeerState state_of(int rank) const override { return control_.peer_state(rank); }
  bool has_ended(int rank) const override { return processes_->has_ended(rank); }
  int name_of(int rank) const override { return rank; }
  int in_world(int rank) const override { return rank; }

 private:
  void collect(std::vector<WorkPtr>& ended) override {
    mailbox_->progress();
    for (auto work = works_.begin(); work != works_.end();) {  // they may end in any order
      if ((*work)->test()) {
        ended.push_back(*work);
        work = works_.erase(work);
      } else {
        ++work;
      }
    }
  }
  bool owes() const override { return mailbox_->outstanding(); }
  std::shared_ptr<void> release() override {
    const std::scoped_lock lock(mailbox_mutex_);
    return std::move(mailbox_);
  }
  const comm::ControlPlane& plane() const override { return control_; }
  int size_of_lane() const override { return control_.world().size; }

  comm::ControlPlane& control_;
  const std::shared_ptr<const Processes> processes_;
  std::mutex mailbox_mutex_;  // guards the pointer: any thread may abort
  std::unique_ptr<comm::Mailbox> mailbox_;
};

}  // namespace dtrain::torch_distributed
