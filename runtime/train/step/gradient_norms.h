// The gradients' norms of the last updates, before clipping, where gradients are clipped: what metrics.jsonl says of a
// batch. On a GPU a norm comes some batches late. A checkpoint holds the norm of its own batch, whose
// line may not be written yet; those before it have their lines. Training thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace dtrain::train {

class GradientNorms {
 public:
  // Of an update after `batch`; of several the largest counts.
  void add(std::int64_t batch, double norm) {
    const auto [place, is_first] = norms_.try_emplace(batch, norm);
    if (!is_first && !(norm <= place->second)) place->second = norm;  // or NaN
    norms_.erase(norms_.begin(), norms_.lower_bound(batch - kKept));
  }
  // Empty: there was no update after this batch, gradients are not clipped, or that is long ago.
  std::optional<double> of(std::int64_t batch) const {
    const auto found = norms_.find(batch);
    return found == norms_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static constexpr std::int64_t kKept = 64;  // batches; far more than a GPU may be behind

  std::map<std::int64_t, double> norms_;
};

}  // namespace dtrain::train
