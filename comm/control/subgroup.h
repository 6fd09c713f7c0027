// A control plane for some ranks of another one, numbered anew: a communicator of those ranks is made over it.
//
// All values travel through the parent's key-value store, under keys of the group's own. The keys stay there until the
// generation ends, so use the group for setup, not in every step. Failures are the run's: they name ranks by their
// number in the run. peer_state() and World count within the group. The parent outlives the group; all calls are thread
// safe.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/comm/control.h"

namespace dtrain::comm {

class ControlSubgroup final : public ControlPlane {
 public:
  // Collective over `members`: ranks of the parent, this one among them, in the order they are numbered in. `name` is
  // the same on all of them and not used by another group of this generation.
  ControlSubgroup(ControlPlane& parent, const std::string& name, std::vector<int> members);

  const World& world() const override { return world_; }
  std::uint32_t generation() const override { return parent_.generation(); }
  std::chrono::milliseconds timeout() const override { return parent_.timeout(); }
  std::string derive_key(const std::string& purpose) const override { return parent_.derive_key(purpose); }
  void set(const std::string& key, const std::string& value) override { parent_.set(prefix_ + "key/" + key, value); }
  std::string get(const std::string& key) override { return parent_.get(prefix_ + "key/" + key); }
  std::optional<std::string> get_within(const std::string& key, std::chrono::milliseconds deadline) override {
    return parent_.get_within(prefix_ + "key/" + key, deadline);
  }
  std::vector<std::string> gather(const std::string& name, const std::string& value) override;
  void barrier(const std::string& name) override { gather(name, {}); }
  void fail(const RankFailure& failure) override { parent_.fail(failure); }
  std::optional<RankFailure> failure() const override { return parent_.failure(); }
  void on_failure(std::function<void(const RankFailure&)> callback) override {
    parent_.on_failure(std::move(callback));
  }
  void set_step(std::int64_t step) override { parent_.set_step(step); }
  // Compares with the clock of the run's rank 0.
  std::optional<ClockOffset> measure_clock(std::chrono::milliseconds deadline) override {
    return parent_.measure_clock(deadline);
  }
  std::optional<ClockOffset> take_clock() override { return parent_.take_clock(); }
  PeerState peer_state(int rank) const override;
  // The members wait for each other; the connection belongs to the parent and stays open.
  void finish() override { barrier("finish"); }
  void leave() override {}

 private:
  std::string collect(const std::string& where, const std::string& own);

  ControlPlane& parent_;
  const std::string prefix_;
  const std::vector<int> members_;
  World world_;
  std::mutex mutex_;
  std::map<std::string, int> rounds_;  // gathers so far, by name; guarded by mutex_
};

}  // namespace dtrain::comm
