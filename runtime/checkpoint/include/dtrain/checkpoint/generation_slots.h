// The memory into which the ranks of one host write generations: whole training states that outlive them. Two slots in
// the run's memory folder (memory_folder.h) take turns: one holds the newest whole state, the next is written into the
// other. A board that the ranks share says how far each is. The host's first rank leads.
//
// A state is complete when its manifest is there and its folder has its name, which it does last. Until then the
// folder has a name that no reader looks at. So a process that dies leaves no half state, and no checksum is needed.
//
// With several hosts a slot has this host's part of a state (host_states.h). The part before it stays until all hosts
// have told each other that theirs are complete: then the new one is settled, and the slots change their turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

// The small memory that the ranks of a host share: a file in the folder of the states, which outlives them. Ranks have
// their place among those of the host, from 0. Any process.
class GenerationBoard {
 public:
  // Makes the board, in the place of an earlier one, for `ranks` of a run of `world` ranks, with room for two
  // publications of `own_bytes` of each. SystemError.
  static void create(const std::filesystem::path& folder, const std::vector<int>& ranks, int world,
                     std::size_t own_bytes);
  // SystemError: there is none, or it is of another version of dtrain.
  explicit GenerationBoard(const std::filesystem::path& folder);

  int ranks() const;
  int number(int rank) const;  // in the run
  int world() const;
  std::size_t own_bytes() const;

  // The generation `number` (1, 2, …): a rank has written its part, or could not.
  void mark_written(int rank, std::uint64_t number, bool failed) const;
  bool all_written(std::uint64_t number) const;
  bool any_failed(std::uint64_t number) const;

  // The slot that is written next, and the batch of the whole state in the other; -1: there is none.
  int turn() const;
  std::int64_t newest() const;
  void set(int turn, std::int64_t newest) const;
  // True while the slot whose turn it is has a complete part that is not settled. Survivors leave it as it is.
  bool has_unsettled() const;
  void set_unsettled(bool unsettled) const;

  // Exclusion of completions. begin_completion() is false while another process completes a state, and for ever after
  // survivors have written one.
  bool begin_completion() const;
  void end_completion(bool by_survivor) const;

  // What a rank publishes of its own after each batch. The last two publications stay.
  struct Publication {
    std::int64_t batch = -1, epoch = 0;
    std::span<const std::byte> bytes;  // a file of its own state (rank_file()), in the memory
  };
  // Returns the memory for this rank's next publication, and shows it to the others.
  std::span<std::byte> begin_publication(int rank) const;
  void publish(int rank, std::int64_t batch, std::int64_t epoch, std::size_t bytes) const;
  std::optional<Publication> published(int rank, std::int64_t batch) const;
  std::vector<std::int64_t> batches_of(int rank) const;  // of the publications that are there

 private:
  struct Header;
  struct Rank;
  struct Unmap {
    std::size_t size = 0;
    void operator()(std::byte* data) const;
  };
  static std::size_t bytes_before_buffers(std::size_t ranks);
  static std::unique_ptr<std::byte, Unmap> map_file(const std::filesystem::path& path);
  Header& header() const;
  Rank& of(int rank) const;
  std::byte* buffer(int rank, int which) const;
  std::unique_ptr<std::byte, Unmap> memory_;
};

// One slot: a folder that holds the files which all ranks write together, mapped one behind the other.
class GenerationSlot {
 public:
  // SystemError.
  GenerationSlot(const std::filesystem::path& folder, const std::string& name, std::size_t model_bytes,
                 std::size_t optimizer_bytes);
  ~GenerationSlot();
  GenerationSlot(GenerationSlot&& other) noexcept;
  GenerationSlot& operator=(GenerationSlot&&) = delete;

  std::byte* data() const { return data_; }  // model.safetensors, and at the next whole page optimizer.safetensors
  void prefault(std::size_t offset, std::size_t bytes) const;
  // Writes a file of this slot's folder. SystemError.
  void write_file(const std::string& name, std::string_view bytes) const;
  // Opens a file of this slot's folder to be written over, with so many bytes. No other process may write it.
  // SystemError.
  UniqueFd open_file(const std::string& name, std::size_t bytes) const;
  int folder() const { return folder_.get(); }

 private:
  UniqueFd folder_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// The names of the slots' folders, which the leader keeps.
struct SlotNames {
  std::vector<std::string> slots;   // two
  int turn = 0;                     // the slot that is written next
  std::int64_t newest = -1;         // batch of the whole state in the other slot; -1: none
  std::vector<std::string> others;  // whole states of other sizes, to be removed once there is a newer state
};
Json to_json(const SlotNames& names);
SlotNames slot_names_of(const Json& json);

// The leader: finds the two slots of these sizes that an earlier attempt has left, or makes them, and reserves their
// memory, which takes time. Removes what cannot be used, but no newest whole state. SystemError: there is not enough.
// `reserved_of_optimizer`: where ranks keep their optimizer state in files of their own, the bytes at the beginning of
// the optimizer's file that are written all the same.
SlotNames reserve_slots(const std::filesystem::path& folder, std::size_t model_bytes, std::size_t optimizer_bytes,
                        std::optional<std::size_t> reserved_of_optimizer = {});
// Reserves all of the optimizer's files after all.
void reserve_optimizers(const std::filesystem::path& folder, const SlotNames& names, std::size_t optimizer_bytes);

struct GenerationFiles {
  About about;
  std::string state;                // the contents of state.json
  std::vector<ManifestFile> files;  // without checksums
};
// The leader: completes the state in the slot whose turn it is, and makes the other slot ready for the next one.
// SystemError: the state is not there. begin_completion() has returned true.
void complete_generation(const std::filesystem::path& folder, SlotNames& names, const GenerationFiles& files);

// The same of this host's part, which is not settled yet: the other slot stays as it is. `files` has no state.json.
void complete_part(const std::filesystem::path& folder, SlotNames& names, const GenerationFiles& files);
// All hosts have completed their parts of this state: the other slot becomes ready for the next one. SystemError.
void settle_part(const std::filesystem::path& folder, SlotNames& names, std::int64_t step);
// A host has not: this host's part, which may be complete, does not count, and its slot is written again. SystemError.
void drop_part(const std::filesystem::path& folder, SlotNames& names);

// A survivor of another rank's death: makes a state of the shared files in that slot's folder and of the ranks' own
// files. Without these, where other hosts have ranks, it is a shared state (host_states.h). SystemError.
struct OwnFile {
  std::string name;
  std::string_view bytes;
};
void complete_by_survivor(const std::filesystem::path& folder, const GenerationSlot& slot, const GenerationFiles& files,
                          const std::vector<OwnFile>& own);

}  // namespace dtrain::checkpoints
