#include "process_id.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

#include <unistd.h>

namespace dtrain::run {

std::uint64_t start_ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return 0;
  // The name, in parentheses, may hold anything; the fields start behind the last one.
  const auto end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string field;
  std::uint64_t ticks = 0;
  constexpr int kState = 3, kStartTime = 22;  // numbered as in proc(5)
  for (int number = kState; number <= kStartTime && fields >> field; ++number) {
    if (number == kState && (field == "Z" || field == "X")) return 0;
    if (number == kStartTime) ticks = std::stoull(field);
  }
  return ticks;
}

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
