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
  // Without the C library's calendar, which looks at the time zone first: lists hold tens of thousands of times.
  const auto day = std::chrono::floor<std::chrono::days>(wall);
  const std::chrono::year_month_day date{std::chrono::sys_days(day)};
  const std::chrono::hh_mm_ss time{std::chrono::floor<std::chrono::microseconds>(wall - day)};
  char text[64];
  const int length =
      std::snprintf(text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%06dZ", static_cast<int>(date.year()),
                    static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                    static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
                    static_cast<int>(time.seconds().count()), static_cast<int>(time.subseconds().count()));
  return {text, static_cast<std::size_t>(length)};
}

double to_seconds(Nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace dtrain
