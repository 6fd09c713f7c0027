// Batches of one rank, read ahead by threads, in the order that epoch_order.h defines. However many
// threads there are, the batches are the same.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"
#include "dtrain/data/read_usage.h"

namespace dtrain::data {

struct LoaderOptions {
  static constexpr int kAuto = -1;
  static constexpr int kMostWorkers = 256;
  static constexpr int kMostAuto = 32;

  std::int64_t batch_size = 1;  // of this rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  // true (training): all batches are full and every rank gets the same number; the remaining samples of the epoch are
  // skipped. false (validation): every sample is on exactly one rank, once; the last batches may be short or missing.
  bool drop_last = true;
  std::uint64_t seed = 0;
  bool whole_batches = false;  // as SamplerOptions::whole_batches
  // Threads that read. 0: next() reads. kAuto: from 1 to as many as the training needs and free_cores allow
  // (worker_count.h).
  int workers = kAuto;
  // Batches read ahead of next(), complete or begun. 0: workers read a batch when next() asks for it. No effect
  // without workers.
  int prefetch = 2;
  double free_cores = 0;  // cores that the training leaves free, for kAuto
  // A damaged sample (DataError) is replaced by the one that follows it in the data set, or by the next good one. So
  // batches stay full, and ranks need not agree. false: it is an error.
  bool skip_damaged = false;
  std::int64_t max_skipped = 100;  // more in one epoch of this rank are an error
  // Bytes of a data set in blocks that are shuffled together.
  std::int64_t shuffle_window = 512 << 20;
  // The time after which next() gives up on a disk or a network that does not answer. 0: no limit. Only with workers.
  std::chrono::nanoseconds timeout{0};
  int ranks_of_host = 1;  // ranks of the run on this host: blocks are read ahead only if these are at least half of all
  // Allocates the memory that batches are read into (page-locked memory); empty: the loader has memory of its own,
  // which it reuses.
  BatchAllocator allocate{};

  // Every sample once, in the order of the data, in batches that are the same on any number of ranks.
  void take_all_in_order() {
    shuffle = drop_last = false;
    whole_batches = true;
  }
};

struct SkippedSample {
  std::int64_t place = 0;  // in the batch
  std::int64_t sample = 0;
  std::string damage;  // names sample, file and offset
};

struct LoadedBatch : HostBatch {
  std::int64_t global_samples = 0;  // of the whole global batch
  ReadUsage usage;                  // of all workers that have read it
  std::vector<SkippedSample> skipped;
};

// The position of a loader, with everything that it needs to continue. Its text has at most kMostBytes.
struct LoaderState {
  static constexpr std::size_t kMostBytes = 1024;

  std::int64_t epoch = 0;
  std::int64_t position = 0;  // samples of the epoch's order that all ranks together have taken
  std::int64_t skipped = 0;   // damaged samples of this rank in this epoch
  std::uint64_t seed = 0;
  std::string order;  // everything besides the seed that determines the order

  std::string text() const;
  // Reads the result of text(). DataError if it is no such text.
  static LoaderState parse(const std::string& text);
  bool operator==(const LoaderState&) const = default;
};

// Iterates over one epoch at a time. One thread calls its functions. If a batch cannot be read, next() throws for that
// batch: DataError names sample, file and offset. The call after that continues with the following batch.
class SampleLoader {
 public:
  // DataError: those of Sampler.
  SampleLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  // Waits for what is being read, if anything; the rest of the epoch is not read. After a time-out it does not wait:
  // threads that never return keep their resources.
  ~SampleLoader();

  // Begins an epoch at a position of its order; what comes before is not read. Drops the batches of the previous epoch
  // that next() has not returned.
  void start_epoch(std::int64_t epoch, std::int64_t position = 0);
  // Goes on where a loader of the same data and seed stood, on this number of ranks. DataError if order or seed is
  // another one, because samples would be lost or repeated.
  void restore(const LoaderState& state);
  // Returns the state after the last batch that next() has returned. The same on all ranks, except for `skipped`.
  LoaderState state() const;
  // Returns the next batch; empty at the end of the epoch, and before the first epoch is started.
  std::optional<LoadedBatch> next();

  std::int64_t batches_per_epoch() const;  // of this rank, in a whole epoch
  std::int64_t batches_left() const;       // that next() will return in this epoch
  std::int64_t samples_per_epoch() const;  // of all ranks together
  std::string order() const;               // as in LoaderState
  bool is_in_windows() const;              // shuffled, and too large to be shuffled as a whole
  std::int32_t queue_depth() const;        // batches complete now
  std::int32_t workers() const;            // threads that read now
  const Dataset& dataset() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // the threads hold it, too
};

}  // namespace dtrain::data
