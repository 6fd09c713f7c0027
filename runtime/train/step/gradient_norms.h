// The gradients' norms of the last updates, before clipping, where gradients are clipped: metrics.jsonl has them by
// batch. On a GPU a norm comes some batches late. A checkpoint holds the norm of its own batch, whose line may not be
// written yet; the batches before it have their lines. Training thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace dtrain::train {

class GradientNorms {
 public:
  // Adds the norm of an update after `batch`. Of several updates the largest norm counts.
  void add(std::int64_t batch, double norm) {
    const auto [place, is_first] = norms_.try_emplace(batch, norm);
    if (!is_first && !(norm <= place->second)) place->second = norm;  // or NaN
    norms_.erase(norms_.begin(), norms_.lower_bound(batch - kKept));
  }
  // Empty: there was no update after this batch, gradients are not clipped, or the batch is too long ago.
  std::optional<double> of(std::int64_t batch) const {
    const auto found = norms_.find(batch);
    return found == norms_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static constexpr std::int64_t kKept = 64;  // batches; far more than a GPU may be behind

  std::map<std::int64_t, double> norms_;
};

}  // namespace dtrain::train
