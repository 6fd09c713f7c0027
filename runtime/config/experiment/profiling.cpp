#include "dtrain/config/profiling.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include <arpa/inet.h>

#include "document/document.h"
#include "document/section.h"
#include "document/value.h"
#include "keys/visitors.h"

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

// Set by libraries that are being loaded: before main(), or when a rank opens the launcher's part.
constinit std::atomic<MakeRules> make_rules = nullptr;
constinit LoadRules load_rules = nullptr;

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

bool register_rules(MakeRules make) {
  make_rules = make;
  return true;
}

bool find_rules_by(LoadRules load) {
  load_rules = load;
  return true;
}

void find_rules() {
  if (!make_rules && load_rules) load_rules();
  if (!make_rules) throw std::logic_error("no rules are registered: this program has not loaded libdtrain_analysis.so");
}

bool has_rules() {
  return make_rules != nullptr;
}

ProfilingRules::ProfilingRules() {
  if (const MakeRules make = make_rules) {
    parameters_ = make();
  } else if (!load_rules) {
    throw std::logic_error("no rules are registered: this program has not loaded libdtrain_analysis.so");
  }
}

RuleParameters& ProfilingRules::parameters() {
  if (!parameters_) parameters_ = make_rules.load()();
  return *parameters_;
}

bool ProfilingRules::operator==(const ProfilingRules& other) const {
  return to_json(*this) == to_json(other);
}

Json rules_json(const Keys::Declare& declare) {
  return PlanWriter::write(declare);
}

void read_rules(const Json& json, const Keys::Declare& declare) {
  Collector ignored("");
  const Value document = value_of(json);
  Section section(&document, "", document.at, ignored);
  KeyReader::read_all(section, declare);
}

void read_overrides(std::span<const std::string> overrides, const Keys::Declare& declare) {
  Collector collector("", "--rule");
  int number = 0;
  for (const std::string& text : overrides) {
    ++number;
    const auto equals = text.find('='), dot = text.find('.');
    if (dot < equals && equals != std::string::npos) continue;
    collector.add({number, true}, "",
                  quote(text) + " is not of the form NAME.PARAMETER=VALUE, StepOutlier.stddev=4 say");
  }
  collector.throw_if_any();
  Value document;
  apply_overrides(overrides, document, collector);
  Section section(&document, "", document.at, collector);
  KeyReader::read_all(section, declare);
  collector.throw_if_any();
}

Json to_json(const ProfilingRules& rules) {
  ProfilingRules shown = rules;
  return rules_json([&](Keys& keys) { declare_keys(keys, shown); });
}

ProfilingRules profiling_rules_of(const Json& json) {
  ProfilingRules rules;
  read_rules(json, [&](Keys& keys) { declare_keys(keys, rules); });
  return rules;
}

ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides) {
  read_overrides(overrides, [&](Keys& keys) { declare_keys(keys, rules); });
  return rules;
}

}  // namespace dtrain::config
