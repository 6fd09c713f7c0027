// The values of `recovery`.
#include "dtrain/config/recovery.h"

#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

constexpr double kShortest = 0.1, kLongest = 1e6;  // seconds

bool is_interval(const std::string& text) {
  const auto seconds = to_number<double>(text);
  return text == "auto" || text == "off" || (seconds && *seconds >= kShortest && *seconds <= kLongest);
}

}  // namespace

const TextRule kStateInterval{.schema = R"({"anyOf": [{"enum": ["auto", "off"]},
                                                    {"type": "number", "minimum": 0.1, "maximum": 1000000}]})",
                              .good = is_interval,
                              .must_be = "auto, off, or 0.1 to 1000000 seconds"};

std::optional<double> Recovery::seconds_between_states() const {
  return to_number<double>(interval);
}

}  // namespace dtrain::config
