#include "folder/process_id.h"

#include <algorithm>
#include <ctime>

#include <unistd.h>

namespace dtrain::run {

Nanoseconds process_start(const Clock& clock) {
  const Nanoseconds now = clock.monotonic();
  const std::uint64_t ticks = start_ticks(::getpid());
  timespec boot{};
  if (ticks == 0 || ::clock_gettime(CLOCK_BOOTTIME, &boot) != 0) return now;
  const auto since_boot = std::chrono::seconds(boot.tv_sec) + Nanoseconds(boot.tv_nsec);
  const auto started = Nanoseconds(static_cast<std::int64_t>(ticks) * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
  return now - std::max(Nanoseconds(0), since_boot - started);
}

}  // namespace dtrain::run
