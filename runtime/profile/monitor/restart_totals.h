// What the failures of the run have cost so far, for Prometheus. One thread.
#pragma once

#include <cstdint>
#include <filesystem>

namespace dtrain::profile {

struct RestartTotals {
  std::int64_t restarts = 0;       // attempts that failed and were followed by another
  std::int64_t recoveries = 0;     // failures after which a new batch has ended
  std::int64_t batches_again = 0;  // batches that recoveries have repeated
  double recovery_s = 0;           // from noticing a failure to the end of the first new batch, summed
  double last_recovery_s = 0;      // the same, of the last recovery
  double lost_s = 0;               // time without a batch that counts, summed
};

// Follows the events of the run's folder. Each call reads only what is new. Where the folder has no events, as on the
// hosts that do not see the launcher's folder, the totals stay 0.
class RestartEvents {
 public:
  explicit RestartEvents(std::filesystem::path run_dir);
  const RestartTotals& poll();

 private:
  std::filesystem::path file_;
  std::int64_t read_ = 0;  // bytes of whole lines
  RestartTotals totals_;
};

}  // namespace dtrain::profile
