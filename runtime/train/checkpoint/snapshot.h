// A snapshot of the training state in memory that the ranks of a host share with its saver: the files of a checkpoint,
// byte for byte. Training thread.
//
// The usual snapshot stops training for small parts alone: headers, buffers, each rank's own file. The updates before
// and after that moment copy parameters and the optimizer's state on their way (UpdateCopy). If that is not possible
// (local steps, several hosts, a model that writes its parameters itself, the end of training) everything is copied at
// once. From GPUs everything is copied in the order of their stream (DeviceCopies).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/state_image.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/comm/control.h"
#include "dtrain/rank/rank_session.h"
#include "model/update_copy.h"
#include "state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

// The hosts of the ranks, and if all of them see the folder of the checkpoints. Plain value.
struct CheckpointHosts {
  int host = 0, hosts = 1;      // this rank's host, in the order of first ranks; their number
  int local_rank = 0;           // among the ranks of this host
  std::vector<int> host_of;     // host of each rank
  std::vector<int> ranks_here;  // ranks of this host, ascending
  bool folder_is_shared = true;

  bool is_leader() const { return local_rank == 0; }
  // Hosts of which each keeps all of a state for itself, as if it were alone.
  CheckpointHosts each_alone() const;
  // True if this host has a saver: only the first has one, unless all see the folder.
  bool saves() const { return host == 0 || folder_is_shared; }
};

// Collective. Makes the folder, if there are several hosts. SystemError.
CheckpointHosts find_checkpoint_hosts(comm::ControlPlane& control, const std::filesystem::path& folder);

// The memory of states that outlive the ranks (Generations), in place of a saver's.
class KeptMemory {
 public:
  virtual ~KeptMemory() = default;
  virtual std::byte* data() const = 0;  // of the shared files of the next state
  // What is this rank's own. `moments`: where ranks have divided the optimizer's state, this rank's stretches of it.
  virtual void write_own(std::span<const std::byte> file, const std::optional<FileImage>& moments) = 0;
  virtual void mark_written(std::uint64_t number) = 0;
};

class Snapshot {
 public:
  // `visit`: walks through all of the state; collective.
  Snapshot(rank::RankSession& session, TrainingStep& step, const CheckpointHosts& hosts, TensorNames names,
           std::function<void(StateVisitor&)> visit);

  // From now on snapshots go into that memory, which has room for them. The object outlives them.
  void keep_in(KeptMemory& memory) { kept_ = &memory; }
  // Finds the places of the shared files' tensors, and returns the image. Collective.
  StateImage lay_out();
  std::size_t largest_own() const { return largest_own_; }  // bytes of a rank's own file, at lay_out()
  // True if the next snapshot has the optimizer's state in stretches, in a file of each rank, where each of several
  // hosts keeps its part alone. The same on all ranks.
  bool is_divided() const;
  // Bytes of each rank's files of the last snapshot, or at lay_out(): its own, and its stretches of the optimizer's
  // state, of which there are none (0) where ranks have all of it.
  struct OwnSizes {
    std::int64_t own = 0, moments = 0;
  };
  const std::vector<OwnSizes>& own_sizes() const { return own_sizes_; }
  std::size_t bytes_of_model() const { return model_bytes_; }
  std::size_t bytes_of_optimizer() const { return optimizer_bytes_; }
  // True while an update is to copy a part of the last snapshot. The same on all ranks.
  bool awaits_update() const { return begun_ || (copy_ && !copy_->finished()); }
  // Copies all parameters and optimizer state of this rank, by several threads, where every rank has all of it.
  void copy_all_now(int threads) const;
  std::size_t place_of_optimizer() const;                    // of its file, behind the model's
  std::byte* place_in_model(const std::string& name) const;  // null: there is no such tensor

  // Makes the memory and maps it, which would hold up training at the first snapshot. Collective. Error: the host lacks
  // memory.
  void reserve();
  // Called before the last update that the snapshot is to contain: lets that update copy a part already, if possible.
  // take() follows it. The memory must be free. The same on all ranks.
  void begin();
  // Takes the snapshot into free memory. `at_update`: the next update may copy. Error: lack of memory. Collective.
  void take(bool at_update);
  // True if this rank's part is complete; tells the saver so, once.
  bool complete();
  // Copies the bytes that the next update has not yet copied.
  void complete_now();
  // True if the model has written its parameters before they were copied: this snapshot is worth nothing. The same on
  // all ranks.
  bool spoiled() const { return copy_ && copy_->spoiled(); }
  // Offers the same bytes once more, under a new number.
  void offer_again();

  // Facts of the last snapshot.
  std::uint64_t number() const { return number_; }
  const std::vector<checkpoints::FileImage>& files() const { return files_; }  // files of this host
  const Json& values() const { return values_; }
  Nanoseconds taken() const { return taken_; }  // since 1970, on rank 0's clock: the same on all ranks
  double copy_seconds() const;                  // time for which it has held up training
  const checkpoints::SnapshotMemory& memory() const { return *memory_; }
  // The number of memories made so far: a saver knows one alone.
  int memories() const { return memories_; }

 private:
  void make_memory(std::size_t shared_bytes, std::size_t largest_own);
  // Returns the bytes of every rank's own file, and notes own_sizes(). Collective.
  std::vector<std::int64_t> sizes_of_own(const StateImage& image, const std::optional<FileImage>& moments = {});
  // This rank's stretches, if is_divided().
  std::optional<FileImage> own_moments() const;
  // Makes the memory unless the image fits into the present one.
  void fit(const StateImage& image, const std::vector<std::int64_t>& sizes);
  // This rank's stretch of the shared files if they are divided evenly: offsets from the first tensor's begin.
  std::pair<std::size_t, std::size_t> even_stretch(std::size_t bytes) const;
  void prefault(const StateImage& image, const std::optional<std::vector<FlatRange>>& ranges) const;
  void write_shared(const StateImage& image, bool divided);
  void write_own(const StateImage& image, const std::optional<FileImage>& moments);
  void send_own(const StateImage& image, const std::vector<std::int64_t>& sizes);
  using PartVisitor = std::function<void(const FlatRange&, const FlatParameters::Parameter&, std::size_t)>;
  void for_each_part(const std::vector<FlatRange>& ranges, const PartVisitor& each) const;
  // Returns the offset of the parameter's values in the memory.
  std::size_t place_of(const FlatParameters::Parameter& parameter) const;
  std::shared_ptr<UpdateCopy> make_copy(const std::vector<FlatRange>& ranges, bool in_two) const;
  void copy_from_device(const std::vector<FlatRange>& ranges);
  void name_files(const StateImage& image, const std::vector<std::int64_t>& sizes);
  std::byte* shared() const { return kept_ ? kept_->data() : memory_->data(); }
  void note_places(const StateImage& image);
  std::size_t own_offset(int region) const { return shared_bytes_ + static_cast<std::size_t>(region) * own_capacity_; }
  bool on_host() const;
  // The ranges of parameters and optimizer state that this rank copies. None: their files are divided evenly.
  std::optional<std::vector<FlatRange>> own_ranges() const;

  rank::RankSession& session_;
  TrainingStep& step_;
  const CheckpointHosts& hosts_;
  const TensorNames names_;
  const std::function<void(StateVisitor&)> visit_;

  KeptMemory* kept_ = nullptr;  // null: memory_ is for a saver
  std::optional<checkpoints::SnapshotMemory> memory_;
  int memories_ = 0;              // made so far; numbers the memories
  std::size_t shared_bytes_ = 0;  // bytes of model and optimizer, in whole pages; on host 0
  std::size_t own_capacity_ = 0;  // bytes for each rank's file
  // Offsets of the two shared files' tensors in the memory; the same in all snapshots of a run.
  std::map<std::string, std::size_t> in_model_, in_optimizer_;
  std::size_t model_bytes_ = 0, optimizer_bytes_ = 0, largest_own_ = 0;
  std::vector<OwnSizes> own_sizes_;
  std::uint64_t number_ = 0;
  Nanoseconds taken_{0};
  std::vector<checkpoints::FileImage> files_;
  Json values_;
  DeviceCopies from_device_;
  std::shared_ptr<UpdateCopy> copy_;  // of the last snapshot, if the next update copies
  bool begun_ = false;                // begin() was called, and take() was not yet
  bool told_ = true;                  // the saver has been told that this rank's part is complete
  double copy_s_ = 0;                 // seconds of the part between two batches, without from_device_.seconds()
};

}  // namespace dtrain::train
