#include "dtrain/base/clock.h"

#include <ctime>
#include <filesystem>
#include <fstream>

namespace dtrain {
namespace {

struct TimeOffsets {
  Nanoseconds monotonic{0}, boottime{0};
};

TimeOffsets read_time_offsets() {
  TimeOffsets offsets;
  // The file holds the offsets of the namespace in which children start, usually this process's own.
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/ns/time", error);
  if (error || own != std::filesystem::read_symlink("/proc/self/ns/time_for_children", error) || error) return offsets;
  std::ifstream file("/proc/self/timens_offsets");
  std::string name;
  std::int64_t seconds = 0, nanoseconds = 0;
  while (file >> name >> seconds >> nanoseconds) {
    (name == "monotonic" ? offsets.monotonic : offsets.boottime) =
        std::chrono::seconds(seconds) + Nanoseconds(nanoseconds);
  }
  return offsets;
}

const TimeOffsets& time_offsets() {
  static const TimeOffsets offsets = read_time_offsets();
  return offsets;
}

Nanoseconds read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return std::chrono::seconds(now.tv_sec) + Nanoseconds(now.tv_nsec);
}

}  // namespace

Nanoseconds monotonic_offset() {
  return time_offsets().monotonic;
}
Nanoseconds boottime_offset() {
  return time_offsets().boottime;
}

Nanoseconds SystemClock::monotonic() const {
  return read_clock(CLOCK_MONOTONIC) - monotonic_offset();
}
Nanoseconds SystemClock::wall() const {
  return read_clock(CLOCK_REALTIME);
}

std::string format_utc(Nanoseconds wall) {
  // Lists hold tens of thousands of times, so this avoids the C library's calendar, which looks at the time zone first,
  // and printf.
  const auto day = std::chrono::floor<std::chrono::days>(wall);
  const std::chrono::year_month_day date{std::chrono::sys_days(day)};
  const std::chrono::hh_mm_ss time{std::chrono::floor<std::chrono::microseconds>(wall - day)};
  std::string text = "0000-00-00T00:00:00.000000Z";
  const auto put = [&](std::size_t end, std::int64_t number) {
    for (; number > 0; number /= 10) text[--end] = static_cast<char>('0' + number % 10);
  };
  put(4, static_cast<int>(date.year()));  // nanoseconds in 64 bits: from 1677 to 2262
  put(7, static_cast<unsigned>(date.month()));
  put(10, static_cast<unsigned>(date.day()));
  put(13, time.hours().count());
  put(16, time.minutes().count());
  put(19, time.seconds().count());
  put(26, time.subseconds().count());
  return text;
}

double to_seconds(Nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

double to_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

}  // namespace dtrain
