// The values of `recovery`.
#include "dtrain/config/recovery.h"

#include <algorithm>

#include "document/section.h"
#include "dtrain/base/text.h"
#include "experiment/conditions.h"

namespace dtrain::config {
namespace {

constexpr double kLongest = 1e6;  // seconds
constexpr int kMostCopies = 1'000'000;

template <int kTenths>
bool is_auto_off_or_seconds(const std::string& text) {
  const auto seconds = to_number<double>(text);
  return text == "auto" || text == "off" || (seconds && *seconds >= kTenths / 10.0 && *seconds <= kLongest);
}

bool is_auto_or_count(const std::string& text) {
  const auto count = to_number<int>(text);
  return text == "auto" || (count && *count >= 0 && *count <= kMostCopies);
}

}  // namespace

const TextRule kHangTime{.schema = R"({"anyOf": [{"enum": ["auto", "off"]},
                                               {"type": "number", "minimum": 1, "maximum": 1000000}]})",
                         .good = is_auto_off_or_seconds<10>,
                         .must_be = "auto, off, or 1 to 1000000 seconds"};

const TextRule kStateInterval{.schema = R"({"anyOf": [{"enum": ["auto", "off"]},
                                                    {"type": "number", "minimum": 0.1, "maximum": 1000000}]})",
                              .good = is_auto_off_or_seconds<1>,
                              .must_be = "auto, off, or 0.1 to 1000000 seconds"};

const TextRule kStateCopies{.schema = R"({"anyOf": [{"enum": ["auto"]},
                                                  {"type": "integer", "minimum": 0, "maximum": 1000000}]})",
                            .good = is_auto_or_count,
                            .must_be = "auto, or a whole number from 0 to 1000000"};

std::optional<std::chrono::milliseconds> Recovery::hang_time() const {
  const auto seconds = to_number<double>(hang);
  if (!seconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

std::optional<double> Recovery::seconds_between_states() const {
  return to_number<double>(interval);
}

int Recovery::copies_among(int hosts) const {
  return std::clamp(to_number<int>(copies).value_or(1), 0, std::max(hosts - 1, 0));
}

void check_copies(Section& section, const Recovery& recovery) {
  if (recovery.keeps_states() || !recovery.asks_for_copies()) return;
  section.refuse("copies", "has no effect with recovery.interval: off, which keeps no states in memory; leave it out");
}

Json what_copies_need() {
  return if_then(is_given("interval", {{"enum", {"off", false}}}), allows({{"copies", {{"const", "auto"}}}}));
}

}  // namespace dtrain::config
