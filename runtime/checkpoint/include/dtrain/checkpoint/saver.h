// The saver: a process on each host that writes checkpoints while training goes on, at idle priority. The ranks of a
// host copy their training state into memory that they share with it (SnapshotMemory), laid out as the files' bytes.
// One rank of each host, its first, starts the saver and tells it what to write (Saver). Nobody waits for the disk.
//
// On several hosts each host's saver writes the files of its own ranks into the same .partial folder, and that of host
// 0 waits for the others' and completes the checkpoint. So the storage must be one that all hosts see.
//
// The saver outlives a rank that is killed: what the ranks have handed over completely is still written. It ends when
// its rank is gone and its work is done. It ignores SIGINT and SIGTERM. If the disk never answers, it cannot end: the
// kernel lets no process go that waits for a disk.
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

// Where a file's bytes lie in a host's SnapshotMemory.
struct FileImage {
  std::string name;        // "model.safetensors"
  std::size_t offset = 0;  // a multiple of 4096
  std::size_t bytes = 0;
  // Of a safetensors file: tensors whose names begin so are weights, and the manifest names one that is not finite.
  // None: it has no weights.
  std::optional<std::string> weights{};
  // Weights that may be infinite, such as masks, since training does not update them; they may not be NaN.
  std::vector<std::string> may_be_infinite{};
};

// The memory, and which of the host's ranks have copied their part of which snapshot into it. All local ranks map it.
class SnapshotMemory {
 public:
  // Reserved. SystemError where the host has not that much.
  static SharedMemory create(std::size_t payload_bytes, int local_ranks);
  // SystemError where the memory was made for another number of ranks.
  SnapshotMemory(SharedMemory memory, int local_ranks);
  // For how many ranks it was made.
  static int local_ranks_of(const SharedMemory& memory);

  // Maps these bytes' pages in this process, so that copying into them takes no page faults.
  void prefault(std::size_t offset, std::size_t bytes) const;

  std::byte* data() const;    // where FileImage::offset 0 lies; aligned to 4096
  std::size_t bytes() const;  // of the payload, a multiple of 4096
  int fd() const;
  int local_ranks() const;

  // This rank's part of the snapshot `number` (1, 2, …) is complete. Release order. Any process.
  void mark_copied(int local_rank, std::uint64_t number) const;
  bool all_copied(std::uint64_t number) const;
  // The saver has read snapshot `number` whole: its memory may be overwritten.
  void mark_free(std::uint64_t number) const;
  std::uint64_t freed() const;  // the last snapshot that was written or given up
  // Somebody waits for the save of snapshot `number`, so that it is not done at idle priority.
  void mark_urgent(std::uint64_t number) const;
  bool is_urgent(std::uint64_t number) const;

 private:
  struct Header;
  Header& header() const;
  SharedMemory memory_;
};

struct SaverOptions {
  std::filesystem::path storage;  // where step-N/ appears
  bool makes_storage = true;      // on host 0 Saver's constructor makes it; else a storage that is gone is an error
  int host = 0, hosts = 1;
  Retention retention;
  std::filesystem::path log;  // the file for the saver's own messages; empty: none
};

struct SaveRequest {
  std::uint64_t number = 1;               // of the snapshot
  About about;                            // the same on every host
  std::vector<FileImage> files;           // of this host
  Json state;                             // becomes state.json; host 0's
  std::vector<std::int64_t> passed_over;  // Retention's, as of now
  std::filesystem::path companion;        // a file that must be durable no later than the checkpoint; empty: none
  double patience_s = 120;                // how long hosts wait for each other, and for a saver of an earlier attempt
};

// How one save went.
struct SaveResult {
  About about;
  std::filesystem::path path;  // empty: it failed
  std::string error;           // what failed, with the file and errno's text; empty: it is durable
  std::string not_finite;      // Entry's
  std::int64_t bytes = 0;
  double wait_s = 0;                 // for the ranks' copies and for other hosts
  double write_s = 0;                // from the first byte to the durable rename, less the wait for other hosts
  double cpu_s = 0;                  // that the saver has used for it
  std::vector<std::string> deleted;  // checkpoints that retention has removed
};

// One thread at a time.
class Saver {
 public:
  // Starts the process dtrain-saver, which shares `memory`. On host 0 makes the storage folder. SystemError.
  Saver(const SaverOptions& options, const SnapshotMemory& memory);
  // Waits for a save under way, if all ranks have copied their part of it; otherwise it is abandoned.
  ~Saver();

  // One at a time: an Error while one is under way. Never waits for the disk. A saver that has ended since the last
  // save is started anew; SystemError where that fails.
  void save(const SaveRequest& request);
  bool busy() const;
  // The result of the save under way, once it is there. Never waits. A saver that was killed is a result with an error.
  std::optional<SaveResult> poll();
  // Waits for it; empty after `patience`, or where no save is under way. From then on it is not at idle priority.
  std::optional<SaveResult> wait(std::chrono::milliseconds patience);

  pid_t pid() const;  // of the process

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Waits until no saver of an earlier attempt is left for `storage` (an advisory lock, .saver.lock). False after
// `patience`.
bool wait_for_savers(const std::filesystem::path& storage, std::chrono::milliseconds patience);

}  // namespace dtrain::checkpoints
