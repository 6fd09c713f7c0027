// Times of events and metrics.
#pragma once

#include <cstdlib>
#include <ctime>
#include <string>

namespace dtrain::analysis {

// "2026-03-01T12:34:56.789012Z" in seconds since 1970; 0 where it is something else.
inline double seconds_of_utc(const std::string& text) {
  std::tm time{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (rest == nullptr) return 0;
  const double fraction = *rest == '.' ? std::atof(rest) : 0;
  return static_cast<double>(::timegm(&time)) + fraction;
}

}  // namespace dtrain::analysis
