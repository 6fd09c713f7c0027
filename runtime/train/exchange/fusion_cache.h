// Remembers tuned fusion plans from run to run, for each model and topology (RunCache). Any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/fusion_plan.h"
#include "exchange/autotune.h"

namespace dtrain::train {

// The result of tuning, and the data from which its plan's exposed communication is predicted.
struct FusionAnswer {
  std::vector<std::size_t> cuts;  // ascending, the last is the number of gradients - 1
  comm::LinkModel link;
  std::vector<double> ready_us;  // ready time of each gradient
};

class FusionCache {
 public:
  // `folder`: empty: nothing is remembered. `key`: everything on which an answer depends.
  FusionCache(const std::filesystem::path& folder, Json key);

  // Returns the earlier answer for the same key, if there is one. A file that is damaged or of another number of
  // gradients counts as none, with a line in the log.
  std::optional<FusionAnswer> find(std::size_t gradients, const Logger& log) const;
  // Stores an answer. If that fails, the log says so, and the answer is not remembered.
  void store(const FusionAnswer& answer, const Json& report, const Logger& log) const;
  const std::filesystem::path& file() const { return cache_.file(); }

 private:
  RunCache cache_;
};

}  // namespace dtrain::train
