// What a process group has: its communicator, and its place in a world.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lane.h"
#include "mail_lane.h"
#include "world.h"

namespace dtrain::torch_distributed {

class Group final : public Lane {
 public:
  // Collective.
  explicit Group(const Meeting& meeting);
  ~Group() override;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }  // ranks of the world, by rank of the group
  comm::Channel channel(int tag) const { return {number_, tag}; }
  comm::Communicator& communicator() { return *communicator_; }  // within submit()
  comm::ControlPlane& control() { return *control_; }
  const std::shared_ptr<MailLane>& mail() const { return mail_; }
  // Returns a tensor of registered memory, which collectives use in place.
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) const;
  bool has_arena() const { return arena_ != nullptr; }
  std::uint64_t next_sequence() { return ++sequence_; }
  std::uint64_t sequence() const { return sequence_; }

  void abort(const std::string& cause) override;
  comm::PeerState state_of(int rank) const override { return control_->peer_state(rank); }
  bool has_ended(int rank) const override { return processes_->has_ended(members_.at(static_cast<std::size_t>(rank))); }
  int name_of(int rank) const override { return names_.at(static_cast<std::size_t>(rank)); }
  int in_world(int rank) const override { return members_.at(static_cast<std::size_t>(rank)); }

  // Records an operation of this group, which is about to be issued.
  FlightEntry record(FlightRecord& record);
  // `titles` returns name and description of the group, which PyTorch gives after it is made.
  void set_titles(std::function<std::pair<std::string, std::string>()> titles) { titles_ = std::move(titles); }
  std::uint64_t next_message() { return ++messages_; }

 private:
  void collect(std::vector<WorkPtr>& ended) override;
  std::shared_ptr<void> release() override;
  const comm::ControlPlane& plane() const override { return *control_; }
  int size_of_lane() const override { return size(); }

  const int rank_;
  std::shared_ptr<World> world_;
  std::vector<int> members_, names_;
  std::uint32_t number_ = 0;
  std::shared_ptr<comm::Arena> arena_;
  std::shared_ptr<MailLane> mail_;
  std::shared_ptr<const Processes> processes_;
  std::unique_ptr<comm::ControlPlane> subgroup_;  // null: the group is the world
  comm::ControlPlane* control_ = nullptr;
  std::mutex communicator_mutex_;  // guards the pointer: any thread may abort
  std::shared_ptr<comm::Communicator> communicator_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> messages_{0};
  std::function<std::pair<std::string, std::string>()> titles_;
  std::once_flag is_in_records_;
  std::int32_t place_in_records_ = -1;
};

}  // namespace dtrain::torch_distributed
