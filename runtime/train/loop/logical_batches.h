// The batches of this rank's logical ranks (reproducibility.virtual_ranks). Training thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/trial.h"

namespace dtrain::train {

// next() returns the batch of the logical rank for which the rank computes now. What is the same for all of them is
// that of the first one.
class LogicalBatches final : public BatchSource {
 public:
  // `of_ranks`: a loader of each logical rank of this rank. The session outlives this object.
  LogicalBatches(const rank::RankSession& session, std::vector<Loader> of_ranks)
      : session_(session), of_ranks_(std::move(of_ranks)) {}

  void start_epoch(std::int64_t epoch) override {
    for (const Loader& loader : of_ranks_) loader->start_epoch(epoch);
  }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override {
    for (const Loader& loader : of_ranks_) loader->start_epoch_at(epoch, batches);
  }
  std::string position() const override { return of_ranks_.front()->position(); }
  std::string go_on_from(const std::string& position) override {
    std::string differences;
    for (const Loader& loader : of_ranks_) differences = loader->go_on_from(position);
    return differences;
  }
  bool order_has_changed() const override { return of_ranks_.front()->order_has_changed(); }
  std::optional<Batch> next() override { return of_ranks_[session_.logical().index()]->next(); }
  std::optional<std::int64_t> batches_left() const override { return most(&BatchSource::batches_left); }
  std::optional<std::int64_t> batches_per_epoch() const override { return most(&BatchSource::batches_per_epoch); }
  std::optional<std::int64_t> samples_per_epoch() const override { return of_ranks_.front()->samples_per_epoch(); }
  std::int32_t queue_depth() const override { return of_ranks_[session_.logical().index()]->queue_depth(); }
  std::int32_t workers() const override { return of_ranks_[session_.logical().index()]->workers(); }

 private:
  // Ranks may have different numbers of batches.
  std::optional<std::int64_t> most(std::optional<std::int64_t> (BatchSource::*number)() const) const {
    std::optional<std::int64_t> result;
    for (const Loader& loader : of_ranks_) result = std::max(result, (*loader.*number)());
    return result;
  }

  const rank::RankSession& session_;
  const std::vector<Loader> of_ranks_;
};

// ConfigError if virtual ranks are asked for beside something of the run or the trial that they do not support yet.
void refuse_beside_virtual_ranks(rank::RankSession& session, TrialContext& context);
// ConfigError if virtual ranks are asked for, and the loader, which this function of the trial has returned, is not of
// context.loader(). A null loader is allowed.
void require_logical_batches(const rank::RankSession& session, const Loader& loader, const char* function);

}  // namespace dtrain::train
