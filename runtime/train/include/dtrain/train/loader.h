// The batches of a trial and their sources.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/data/loader.h"

namespace dtrain {

// One batch of one rank: a tensor for each field of the data set. Its first dimension counts samples.
struct Batch {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  std::int64_t samples = 0;
  // Samples of all ranks' batches together in this round, if the source knows their number on every rank. Each sample
  // then counts the same in the gradient, also where ranks have different numbers of samples, or none. 0: the mean over
  // each rank's batch counts the same.
  std::int64_t global_samples = 0;
  std::int64_t fetch_ns = -1;  // time of reading, added up over the workers; -1: not known
  // The tensors in host memory from which those on the GPU were copied, for checks that must not wait for the GPU.
  // Empty on CPUs.
  std::vector<at::Tensor> host_tensors{};
  data::ReadUsage usage{};                     // further resources that reading has used
  std::vector<data::SkippedSample> skipped{};  // damaged samples that others have replaced
  // The batch's place in the training data, the same on all ranks that train on parts of one batch: if it differs, all
  // ranks get an error. -1: ranks have batches of their own.
  std::int64_t place = -1;

  // Returns the tensor of a field. DataError if there is no field of this name; it lists the names.
  const at::Tensor& operator[](const std::string& name) const;
};

// Subclass it to supply batches of your own. Only the training thread uses it. Ranks may have different numbers of
// batches. A rank whose batches end early continues to take part in the exchange, but contributes nothing.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual void start_epoch(std::int64_t epoch) = 0;
  // Starts an epoch after this rank's first `batches` batches, for a run that goes on in the middle of an epoch.
  // Without an override it reads and discards these batches, each with the same random numbers as the first time.
  virtual void start_epoch_at(std::int64_t epoch, std::int64_t batches) {
    start_epoch(epoch);
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      if (seed_) seed_(batch);
      if (!next()) return;
    }
  }
  // Returns the source's position after the last batch that next() has returned, for a checkpoint: a text of at most 1
  // KB, the same on all ranks but for counts, from which a run goes on with any number of ranks and any batch size.
  // Empty: the number of batches is enough.
  virtual std::string position() const { return {}; }
  // Goes on from such a text of an earlier run. Returns the differences from that run; empty: the sequence of samples
  // continues.
  virtual std::string go_on_from(const std::string& /*position*/) { return {}; }
  // True if versions of dtrain without position() took the samples of this data in another order.
  virtual bool order_has_changed() const { return false; }
  // Batches of this rank from here to the end of the epoch, if known.
  virtual std::optional<std::int64_t> batches_left() const { return std::nullopt; }
  virtual std::optional<Batch> next() = 0;  // empty at the end of the epoch
  virtual std::optional<std::int64_t> batches_per_epoch() const { return std::nullopt; }  // of this rank, if known
  virtual std::optional<std::int64_t> samples_per_epoch() const { return std::nullopt; }  // of all ranks, if known
  // For a source that learns only while it is read how long training is: true if another epoch follows the one that has
  // ended. Training is over once it is false on any rank. Empty, which is the same on all ranks: the experiment's
  // length alone decides.
  virtual std::optional<bool> has_next_epoch() const { return std::nullopt; }
  // True if damaged samples are replaced: their number becomes a metric then.
  virtual bool may_skip() const { return false; }
  virtual std::int32_t queue_depth() const { return 0; }
  virtual std::int32_t workers() const { return 0; }

  // Called by dtrain: `seed` seeds libtorch's random numbers for the next() that returns batch `batch` (from 0) of the
  // epoch. A loader that calls next() of another loader ahead of time needs it.
  void seed_with(std::function<void(std::int64_t batch)> seed) { seed_ = std::move(seed); }

 private:
  std::function<void(std::int64_t batch)> seed_;  // empty: random numbers are not seeded
};

using Loader = std::shared_ptr<BatchSource>;

// Loads a data set (dtrain/data), prefetched in the background, in batches of tensors that own their memory.
Loader make_loader(std::shared_ptr<const data::Dataset> dataset, const data::LoaderOptions& options);

}  // namespace dtrain
