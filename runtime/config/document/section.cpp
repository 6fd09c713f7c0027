#include "document/section.h"

#include <algorithm>
#include <array>

#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

// Returns a bound without trailing zeros: "0.1", "1000000".
std::string to_text(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return static_cast<double>(whole) == value ? std::to_string(whole) : Json(value).dump();
}
std::string to_text(std::int64_t value) {
  return std::to_string(value);
}

template <typename T>
std::string range_text(std::string kind, T min, T max, bool both) {
  if (!both) return kind.append(" of at least ").append(to_text(min));
  return kind.append(" from ").append(to_text(min)).append(" to ").append(to_text(max));
}

std::string did_you_mean(const Value& value, std::span<const std::string> choices) {
  if (!value.is_scalar()) return "";
  const auto near = nearest(value.text, choices);
  return near ? "; did you mean '" + *near + "'?" : "";
}

}  // namespace

std::string must_be(const std::string& what, const Value& value) {
  return "must be " + what + ", not " + describe(value);
}

std::string list_of_choices(std::span<const std::string> choices) {
  const auto all_but_last = choices.first(choices.size() - 1);
  return all_but_last.empty() ? choices.back() : join(all_but_last, ", ") + " or " + choices.back();
}

Section::Section(const Value* value, std::string path, Location at, Collector& collector)
    : value_(value && value->is_map() ? value : nullptr), path_(std::move(path)), at_(at), collector_(collector) {
  if (value && !value->is_map() && !value->is_null()) {
    collector_.add(value->at, path_, must_be("a mapping of keys to values", *value));
    broken_ = true;
  }
}

const Value* Section::find(const std::string& key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
    known_.push_back(key);
    collector_.add_known(path_of(key));
  }
  const Entry* entry = value_ ? value_->find(key) : nullptr;
  return entry ? &entry->value : nullptr;
}

void Section::report(const Value& value, const std::string& key, const std::string& message) {
  collector_.add(value.at, path_of(key), message);
}

void Section::report_missing(const std::string& key, const std::string& what_it_is) {
  if (broken_) return;
  std::string message = "required key is missing: " + what_it_is;
  std::vector<std::string> others;
  if (value_) {
    for (const Entry& entry : value_->entries) others.push_back(entry.key);
  }
  if (const auto near = nearest(key, others)) {
    const Entry* entry = value_->find(*near);
    message +=
        "; is it '" + *near + "'" + (entry->at.in_override ? "" : " on line " + std::to_string(entry->at.line)) + "?";
  }
  collector_.add(at_, path_of(key), message);
}

const Value* Section::find_at(const std::string& path) {
  const std::vector<std::string> names = split(path, '.');
  const Value* value = find(names.front());
  for (std::size_t i = 1; value && i < names.size(); ++i) {
    const Entry* entry = value->find(names[i]);
    value = entry ? &entry->value : nullptr;
  }
  return value;
}

void Section::refuse(const std::string& path, const std::string& message) {
  if (const Value* value = find_at(path)) report(*value, path, message);
}

Section Section::section(const std::string& key) {
  const Value* value = find(key);
  return Section(value, path_of(key), value ? value_->find(key)->at : at_, collector_);
}

bool Section::boolean(const std::string& key, bool fallback) {
  const Value* value = find(key);
  if (!value) return fallback;
  if (const auto result = as_boolean(*value)) return *result;
  std::string hint;
  if (value->is_scalar() && !value->quoted) {
    for (const char* word : {"yes", "Yes", "on", "On", "1"})
      hint = value->text == word ? "; did you mean 'true'?" : hint;
    for (const char* word : {"no", "No", "off", "Off", "0"})
      hint = value->text == word ? "; did you mean 'false'?" : hint;
    if (hint.empty()) hint = did_you_mean(*value, std::array<std::string, 2>{"true", "false"});
  }
  report(*value, key, must_be("true or false", *value) + hint);
  return fallback;
}

std::int64_t Section::parse_integer(const Value& value, const std::string& key, std::int64_t fallback, std::int64_t min,
                                    std::int64_t max) {
  const auto parsed = as_integer(value);
  if (parsed.value && *parsed.value >= min && *parsed.value <= max) return *parsed.value;
  const bool too_large = parsed.value ? *parsed.value > max : parsed.error == NumberError::kOutOfRange;
  const bool narrow = max < 100'000;
  report(value, key, must_be(range_text("a whole number", min, max, too_large || narrow), value));
  return fallback;
}

std::int64_t Section::integer(const std::string& key, std::int64_t fallback, std::int64_t min, std::int64_t max) {
  const Value* value = find(key);
  return value ? parse_integer(*value, key, fallback, min, max) : fallback;
}

std::optional<std::int64_t> Section::optional_integer(const std::string& key, std::int64_t min, std::int64_t max) {
  const Value* value = find(key);
  if (!value || value->is_null()) return std::nullopt;
  return parse_integer(*value, key, min, min, max);
}

double Section::number(const std::string& key, double fallback, double min, double max) {
  const Value* value = find(key);
  if (!value) return fallback;
  const auto parsed = as_number(*value);
  if (parsed.value && *parsed.value >= min && *parsed.value <= max) return *parsed.value;
  report(*value, key, must_be(range_text("a number", min, max, true), *value));
  return fallback;
}

std::string Section::text(const std::string& key, const std::string& fallback) {
  const Value* value = find(key);
  if (!value) return fallback;
  if (value->is_scalar()) return value->text;
  report(*value, key, must_be("text", *value));
  return fallback;
}

std::vector<std::string> Section::texts(const std::string& key) {
  const Value* value = find(key);
  std::vector<std::string> result;
  if (!value || value->is_null()) return result;
  if (value->kind != Value::Kind::kList) {
    report(*value, key, must_be("a list of texts", *value));
    return result;
  }
  for (const Value& item : value->items) {
    if (item.is_scalar()) {
      result.push_back(item.text);
    } else {
      report(item, key, "every item " + must_be("text", item));
    }
  }
  return result;
}

std::string Section::choice(const std::string& key, const std::string& fallback, std::span<const std::string> choices) {
  const Value* value = find(key);
  if (!value) return fallback;
  if (value->is_scalar() && std::find(choices.begin(), choices.end(), value->text) != choices.end()) return value->text;
  report(*value, key, must_be(list_of_choices(choices), *value) + did_you_mean(*value, choices));
  return fallback;
}

Length Section::length(const std::string& key, Length fallback, std::int64_t min) {
  const std::string expected = "one of {batches: n}, {records: n}, {epochs: n}";
  const Value* value = find(key);
  if (!value) return fallback;
  if (!value->is_map()) {
    report(*value, key, must_be(expected, *value));
    return fallback;
  }
  Section units(value, path_of(key), value->at, collector_);
  std::vector<std::string> given;
  Length result = fallback;
  for (const auto& [name, unit] : kLengthUnits) {
    if (!units.find(name)) continue;
    given.emplace_back(name);
    result = {unit, units.integer(name, min, min, kMaxLength)};
  }
  if (given.empty() && value->entries.empty()) report(*value, key, must_be(expected, *value));
  if (given.size() > 1)
    report(*value, key, "has " + std::to_string(given.size()) + " units (" + join(given, ", ") + "); keep one");
  units.finish();
  return result;
}

Json Section::free_map(const std::string& key) {
  const Value* value = find(key);
  if (!value || value->is_null()) return Json::object();
  if (!value->is_map()) {
    report(*value, key, must_be("a mapping of keys to values", *value));
    return Json::object();
  }
  return to_json(*value, path_of(key), collector_);
}

void Section::refuse_yet(const std::string& key, const std::string& instead) {
  const Value* value = find(key);
  if (!value) return;
  const std::string what = value->is_scalar() ? quote(value->text) : "this";
  report(*value, key, what + " is not supported yet; " + instead);
}

void Section::finish() {
  if (!value_) return;
  for (const Entry& entry : value_->entries) {
    if (std::ranges::find(known_, entry.key) == known_.end()) collector_.add_unknown(entry.at, path_, entry.key);
  }
}

Json to_json(const Value& value, const std::string& path, Collector& collector) {
  if (value.kind == Value::Kind::kNull) return nullptr;
  if (value.kind == Value::Kind::kList) {
    Json list = Json::array();
    for (const Value& item : value.items) list.push_back(to_json(item, path, collector));
    return list;
  }
  if (value.kind == Value::Kind::kMap) {
    Json map = Json::object();
    for (const Entry& entry : value.entries)
      map[entry.key] = to_json(entry.value, join_path(path, entry.key), collector);
    return map;
  }
  if (value.quoted) return value.text;
  if (const std::string why = two_meanings(value); !why.empty()) {
    collector.add(value.at, path, why);
    return nullptr;
  }
  if (const auto boolean = as_boolean(value)) return *boolean;
  const auto integer = as_integer(value);
  if (integer.value) return *integer.value;
  const auto number = as_number(value);
  if (integer.error == NumberError::kOutOfRange || (!number.value && number.error == NumberError::kOutOfRange)) {
    collector.add(value.at, path, quote(value.text) + " is too large or not finite; a number must fit 64 bits");
    return nullptr;
  }
  if (number.value) return *number.value;
  return value.text;
}

}  // namespace dtrain::config
