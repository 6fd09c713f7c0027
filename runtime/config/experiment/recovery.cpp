// The values of `recovery`.
#include "dtrain/config/recovery.h"

#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

constexpr double kLongest = 1e6;  // seconds

template <int kTenths>
bool is_auto_off_or_seconds(const std::string& text) {
  const auto seconds = to_number<double>(text);
  return text == "auto" || text == "off" || (seconds && *seconds >= kTenths / 10.0 && *seconds <= kLongest);
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

std::optional<std::chrono::milliseconds> Recovery::hang_time() const {
  const auto seconds = to_number<double>(hang);
  if (!seconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

std::optional<double> Recovery::seconds_between_states() const {
  return to_number<double>(interval);
}

}  // namespace dtrain::config
