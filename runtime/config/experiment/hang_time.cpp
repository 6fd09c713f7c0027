#include "dtrain/base/text.h"
#include "dtrain/config/recovery.h"

namespace dtrain::config {
namespace {

constexpr double kShortest = 1, kLongest = 1e6;  // seconds

bool is_hang_time(const std::string& text) {
  const auto seconds = to_number<double>(text);
  return text == "auto" || text == "off" || (seconds && *seconds >= kShortest && *seconds <= kLongest);
}

}  // namespace

const TextRule kHangTime{.schema = R"({"pattern": "^(auto|off|[0-9.]+(e[0-9]+)?)$", "minimum": 1, "maximum": 1000000})",
                         .good = is_hang_time,
                         .must_be = "auto, off, or 1 to 1000000 seconds"};

std::optional<std::chrono::milliseconds> Recovery::hang_time() const {
  const auto seconds = to_number<double>(hang);
  if (!seconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

}  // namespace dtrain::config
