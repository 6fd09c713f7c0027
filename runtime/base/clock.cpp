#include "dtrain/base/clock.h"

#include <cstdio>
#include <ctime>

namespace dtrain {
namespace {

Nanoseconds read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return std::chrono::seconds(now.tv_sec) + Nanoseconds(now.tv_nsec);
}

}  // namespace

Nanoseconds SystemClock::monotonic() const {
  return read_clock(CLOCK_MONOTONIC);
}
Nanoseconds SystemClock::wall() const {
  return read_clock(CLOCK_REALTIME);
}

std::string format_utc(Nanoseconds wall) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(wall);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(wall - whole).count();
  const std::time_t seconds = whole.count();
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char date[40];
  const std::size_t length = std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  char fraction[16];
  std::snprintf(fraction, sizeof fraction, ".%06dZ", static_cast<int>(micros));
  return std::string(date, length) + fraction;
}

double to_seconds(Nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace dtrain
