// Keeps whole training states in memory that outlives the ranks (checkpoint/generation_slots.h), from which the next
// ranks go on after some have died. A state is taken by the clock, as a checkpoint is: updates copy it on their way.
//
// After each batch a rank also publishes what is its own, if that is cheap. If another rank dies, one of the others
// then writes the state of the last batch: parameters and optimizer state are its own, the rest is what all have
// published. Training thread.
//
// With several hosts each has its own folder, board and slots. A state that is taken by the clock is in parts: each
// host has what all ranks have alike and what is its own ranks' own, and sends the latter to the next hosts while
// training goes on (host_parts.h). Once every host has told the others that its part is complete and its copies are
// there, the state is settled, and the one before it is given up: so the hosts have all parts of one state at any time.
// Survivors on each host save what all ranks have alike; what the ranks have published stays on the boards. The next
// ranks put parts, or both of these, together (gathered_state.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/host_parts.h"
#include "checkpoint/own_state.h"
#include "checkpoint/snapshot.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "dtrain/rank/rank_session.h"
#include "step/training_step.h"

namespace dtrain::train {

class Generations final : private KeptMemory {
 public:
  // `run`: About::run. `visit`: as for Checkpoints. The references outlive the object.
  Generations(rank::RankSession& session, TrainingStep& step, const CheckpointHosts& hosts, TensorNames names, Json run,
              std::function<void(StateVisitor&)> visit);
  ~Generations() override;

  // For this rank's announcement: true if the last state is not complete yet, and true on rank 0 if the next is due.
  bool busy();
  bool wanted() const;

  struct Moment {
    std::int64_t batch = 0, epoch = 0;
  };
  // When all are free: settles the last state, where that has not been done. Collective.
  void settle();
  // When all are free and rank 0 wants a state: takes one, or makes a step towards the first. Collective.
  void take(const Moment& moment);
  // True while an update is to copy a part of the last state; finish_copy() copies that part now. The same on all
  // ranks.
  bool awaits_update() const { return snapshot_.awaits_update(); }
  void finish_copy() { snapshot_.complete_now(); }

  // After each batch: shows the others what is this rank's own. `visit`: not collective on a host.
  void publish(const Moment& moment);
  // Before each update: the published state is not that of the parameters any more.
  void begin_update() { batch_of_parameters_.reset(); }
  // After an exchange has failed because another rank has ended: completes the state of the last batch, if it can be
  // told and no other rank does. Returns that batch.
  std::optional<std::int64_t> save_as_survivor();

 private:
  enum class Stage { kOff, kBegin, kReserving, kReady };
  void reserve();
  bool connect();
  std::string map_slots(const checkpoints::SlotNames& names);
  bool is_one_host() const { return hosts_.hosts == 1; }
  void turn_off(const std::string& why);
  // Returns the first rank's problem that has one. Collective.
  std::string first_problem(const std::string& key, const std::string& own);
  void complete();
  std::vector<checkpoints::ManifestFile> shared_files() const;
  std::size_t bytes_of_slots() const;
  // Reserves memory for the optimizer's state on each host, if ranks do not divide it any more. Collective then.
  bool reserve_optimizers();
  void tell_of_copies();
  std::chrono::duration<double> interval() const;
  // Rank 0: says in the plan if survivors can save a state. Empty: they can.
  void tell_of_survivors(const std::string& why_not);
  void measure(Nanoseconds batch, Nanoseconds publication, const OwnStateWriter& record);
  checkpoints::GenerationFiles files_of(const Moment& moment) const;
  std::int64_t bytes_in_use() const;

  std::byte* data() const override;
  void write_own(std::span<const std::byte> file, const std::optional<FileImage>& moments) override;
  void mark_written(std::uint64_t number) override;
  void write_moments(const FileImage& moments) const;
  const checkpoints::GenerationSlot& slot() const;

  rank::RankSession& session_;
  TrainingStep& step_;
  const Json run_;
  const std::function<void(StateVisitor&)> visit_;
  const CheckpointHosts hosts_;
  const std::filesystem::path folder_;
  Snapshot snapshot_;
  std::optional<HostParts> parts_;  // with several hosts

  Stage stage_ = Stage::kOff;
  std::optional<StateImage> layout_;
  std::optional<checkpoints::GenerationBoard> board_;
  std::vector<checkpoints::GenerationSlot> slots_;
  std::optional<Moment> pending_;  // a leader: of the state that is not complete yet
  bool own_failed_ = false;        // this rank could not write its own file of the last state
  Nanoseconds last_time_{0};
  // Of the last state: for how long copying has held up training, on this rank or with several hosts the most of any;
  // and for how long its copies were on their way to other hosts.
  double cost_s_ = 0, link_s_ = 0;
  int taken_ = 0;

  // A leader: the slots' names, and the thread that reserves their memory.
  checkpoints::SlotNames names_;
  std::string reserve_error_;
  std::atomic<bool> reserved_{false};
  std::thread reserver_;

  // The same on all ranks: if memory is reserved for all of the optimizer's state, and if the last part is not settled.
  bool reserves_optimizer_ = true, is_unsettled_ = false;
  double told_interval_s_ = 0;

  // Publications.
  std::optional<std::int64_t> batch_of_parameters_;
  Nanoseconds last_publication_{0};                      // or when it would have been
  std::vector<std::int64_t> batch_ns_, publication_ns_;  // of the last ones
  std::optional<std::string> why_no_survivors_;          // as the plan says; nothing: it does not say
  Json plan_;                                            // rank 0: what the plan says of states in memory
  int unpublished_ = 0;                                  // batches for which publications pause
};

}  // namespace dtrain::train
