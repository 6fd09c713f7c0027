#include "dtrain/config/profiling.h"

#include <algorithm>
#include <array>

#include <arpa/inet.h>

#include "document/scalar.h"
#include "document/section.h"

namespace dtrain::config {
namespace {

constexpr const char* kBegin = "begin_on_batch";
constexpr const char* kEnd = "end_after_batch";

bool is_ipv4_address(const std::string& text) {
  in_addr parsed{};
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1;
}

void check_range(Section& section, std::int64_t begin, std::optional<std::int64_t> end) {
  if (!end || *end >= begin) return;
  section.report(*section.find(kEnd), kEnd,
                 "is before begin_on_batch (" + std::to_string(begin) + "): not one batch would be traced");
}

}  // namespace

const TextRule kIpv4Address{.schema = R"({"type": "string", "pattern": "^(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9]))"
                                      R"((\\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}$"})",
                            .good = is_ipv4_address,
                            .must_be = "an IPv4 address of the host (127.0.0.1; 0.0.0.0 for all it has)",
                            .bare = true};

std::optional<BatchRange> Profiling::traced() const {
  if (trace || !enabled) return trace;
  return BatchRange{std::max<std::int64_t>(1, begin_on_batch), end_after_batch.value_or(kMaxLength)};
}

void check_together(Section& section, const BatchRange& range) {
  const Value* end = section.find(kEnd);
  // A missing value or one that is no number is reported already.
  if (end && as_integer(*end).value == range.end_after_batch)
    check_range(section, range.begin_on_batch, range.end_after_batch);
}

void check_together(Section& section, const Profiling& profiling) {
  check_range(section, profiling.begin_on_batch, profiling.end_after_batch);
  // A range that nothing uses would be a setting without effect.
  const auto refuse_range = [&](const std::string& why) {
    if (profiling.begin_on_batch != 0) section.report(*section.find(kBegin), kBegin, why);
    if (profiling.end_after_batch) section.report(*section.find(kEnd), kEnd, why);
  };
  if (profiling.trace) {
    refuse_range("has no effect beside profiling.trace, which names the batches; keep one of them");
  } else if (!profiling.enabled) {
    refuse_range("has no effect while profiling.enabled is false");
  }
}

Json profiling_together() {
  return Json::parse(R"({
    "if": {
      "type": "object",
      "required": ["enabled"],
      "properties": {"enabled": {"const": true}, "trace": {"type": "null"}}
    },
    "else": {"properties": {"begin_on_batch": {"const": 0}, "end_after_batch": {"const": null}}}
  })");
}

}  // namespace dtrain::config
