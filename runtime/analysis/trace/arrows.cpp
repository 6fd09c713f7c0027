#include "trace/arrows.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

namespace dtrain::analysis {
namespace {

constexpr double kLateNoteUs = 5;  // the clock is read a moment before or after what it is read for

}  // namespace

void Arrows::add(std::int64_t pid, const profile::PlacedCollective& collective) {
  auto& slices = collectives_[{collective.batch, collective.sequence, collective.operation}];
  if (!slices.empty()) ++count_;
  slices.push_back({pid, collective.track, collective.came_us, collective.start_us, collective.end_us});
  ++slices_;
}

std::string Arrows::events() const {
  fmt::memory_buffer out;
  std::int64_t id = 0;
  for (const auto& [key, slices] : collectives_) {
    const auto last = std::max_element(slices.begin(), slices.end(),
                                       [](const Slice& a, const Slice& b) { return a.start_us < b.start_us; });
    for (auto other = slices.begin(); other != slices.end(); ++other) {
      if (other == last) continue;
      // An arrow's ends belong to the slices they lie in.
      const double arrives = std::clamp(last->start_us, other->start_us, other->end_us);
      const auto put = [&](const char* phase, const Slice& slice, double at_us) {
        fmt::format_to(
            std::back_inserter(out),
            R"({{"ph":"{}","bp":"e","cat":"waited_for","name":"last rank","id":{},"pid":{},"tid":{},"ts":{:.3f}}})"
            ",\n",
            phase, id, slice.pid, slice.track, at_us);
      };
      ++id;
      put("s", *last, last->start_us);
      put("f", *other, arrives);
    }
  }
  return {out.data(), out.size()};
}

std::int64_t Arrows::impossible(double error_us) const {
  std::int64_t count = 0;
  for (const auto& [key, slices] : collectives_) {
    double last_came = slices.front().came_us, first_end = slices.front().end_us;
    for (const Slice& slice : slices) {
      last_came = std::max(last_came, slice.came_us);
      first_end = std::min(first_end, slice.end_us);
    }
    if (first_end + error_us + kLateNoteUs < last_came) ++count;
  }
  return count;
}

}  // namespace dtrain::analysis
