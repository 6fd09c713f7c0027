// The saver: a process on each host that writes checkpoints during training, at idle priority. The ranks of a host copy
// their training state into memory that they share with the saver (SnapshotMemory), in the layout of the files. The
// first rank of each host starts the saver and sends it requests (Saver). No rank waits for the disk.
//
// On several hosts, each host's saver writes the files of its own ranks into the same .partial folder. The saver of
// host 0 waits for the others and completes the checkpoint. So all hosts must have access to the storage.
//
// The saver outlives a rank that is killed: it still writes a snapshot that the ranks have copied completely. It ends
// when the rank that started it is gone and its work is done. It ignores SIGINT and SIGTERM. If the disk never answers,
// the saver cannot end, because the kernel does not end a process that waits for a disk.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/json.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

// The place of a file's bytes in a host's SnapshotMemory.
struct FileImage {
  std::string name;        // "model.safetensors"
  std::size_t offset = 0;  // a multiple of 4096
  std::size_t bytes = 0;
  // In a safetensors file, tensors whose names begin with this are weights; the manifest names the first one that is
  // not finite. Empty optional: the file has no weights.
  std::optional<std::string> weights{};
  // Weights that may be infinite but not NaN, because training does not update them, such as masks.
  std::vector<std::string> may_be_infinite{};
};

// The memory into which the host's ranks copy their parts of a snapshot, and which snapshot each rank has copied. All
// local ranks map it.
class SnapshotMemory {
 public:
  // Reserves the memory. SystemError if the host does not have that much.
  static SharedMemory create(std::size_t payload_bytes, int local_ranks);
  // SystemError if the memory was made for another number of ranks.
  SnapshotMemory(SharedMemory memory, int local_ranks);
  // The number of ranks that the memory was made for.
  static int local_ranks_of(const SharedMemory& memory);

  // Maps the pages of these bytes in this process, so that copying into them causes no page faults.
  void prefault(std::size_t offset, std::size_t bytes) const;

  std::byte* data() const;    // address of FileImage::offset 0; aligned to 4096
  std::size_t bytes() const;  // of the payload, a multiple of 4096
  int fd() const;
  int local_ranks() const;

  // This rank's part of the snapshot `number` (1, 2, …) is complete. Release order. Any process.
  void mark_copied(int local_rank, std::uint64_t number) const;
  // True if all ranks have marked the snapshot. Acquire order.
  bool all_copied(std::uint64_t number) const;
  // The saver has read all of snapshot `number`: its memory may be overwritten.
  void mark_free(std::uint64_t number) const;
  std::uint64_t freed() const;  // the last snapshot that was written or abandoned
  // A rank waits for the save of snapshot `number`; the saver then does not run at idle priority.
  void mark_urgent(std::uint64_t number) const;
  bool is_urgent(std::uint64_t number) const;

 private:
  struct Header;
  Header& header() const;
  SharedMemory memory_;
};

struct SaverOptions {
  std::filesystem::path storage;  // folder of step-N/
  bool makes_storage = true;      // Saver's constructor makes the folder on host 0; false: it must exist
  int host = 0, hosts = 1;
  Retention retention;
  std::filesystem::path log;  // the file for the saver's own messages; empty: none
};

struct SaveRequest {
  std::uint64_t number = 1;               // of the snapshot
  About about;                            // the same on every host
  std::vector<FileImage> files;           // of this host
  Json state;                             // becomes state.json; only on host 0
  std::vector<std::int64_t> passed_over;  // as in Retention, at this time
  std::filesystem::path companion;        // a file that must be durable no later than the checkpoint; empty: none
  double patience_s = 120;                // longest wait of hosts for each other, and for a saver of an earlier attempt
};

// The outcome of one save.
struct SaveResult {
  About about;
  std::filesystem::path path;  // empty: it failed
  std::string error;           // what failed, with the file and errno's text; empty: it is durable
  std::string not_finite;      // as in Entry
  std::int64_t bytes = 0;
  double wait_s = 0;                 // for the ranks' copies and for other hosts
  double write_s = 0;                // from the first byte to the durable rename, without the wait for other hosts
  double cpu_s = 0;                  // processor time that the saver has used for it
  std::vector<std::string> deleted;  // checkpoints that retention has removed
};

// The longest wait of a process that ends for its saver to complete a checkpoint, and of the next attempt for a saver
// of an earlier one.
inline constexpr std::chrono::seconds kSaverPatience{60};

// One thread at a time.
class Saver {
 public:
  // Starts the process dtrain-saver, which shares `memory`. Makes the storage folder on host 0. SystemError.
  Saver(const SaverOptions& options, const SnapshotMemory& memory);
  // end(kSaverPatience), unless end() has been called.
  ~Saver();

  // Starts a save. One at a time: an Error while one is under way. Never waits for the disk. Starts the saver again if
  // it has ended since the last save; SystemError if that fails.
  void save(const SaveRequest& request);
  bool busy() const;
  // The result of the save under way, once there is one. Never waits. If the saver was killed, the result has an error.
  std::optional<SaveResult> poll();
  // Waits for the result; empty after `patience`, or if no save is under way. Takes the saver off idle priority for
  // this save.
  std::optional<SaveResult> wait(std::chrono::milliseconds patience);

  // Ends the process; the destructor alone may follow. Waits for a save under way if all ranks have copied their parts,
  // `patience` at most; otherwise the save is abandoned. Empty: the process has ended. Otherwise a message for the
  // user: the process continues by itself and ends when the checkpoint is complete.
  std::string end(std::chrono::milliseconds patience) noexcept;

  pid_t pid() const;  // of the process

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Waits until no saver of an earlier attempt is left for `storage` (an advisory lock, .saver.lock). False after
// `patience`.
bool wait_for_savers(const std::filesystem::path& storage, std::chrono::milliseconds patience);

}  // namespace dtrain::checkpoints
