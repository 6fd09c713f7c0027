// Keys whose value is true or false, a number, one of some words, a text, a list of texts or the path of a file.
#include <algorithm>
#include <limits>

#include "document/value.h"
#include "dtrain/config/keys.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

Json or_null(Json type, bool nullable) {
  if (!nullable) return type;
  return Json::array({std::move(type), "null"});
}

std::string or_null_text(bool nullable) {
  return nullable ? " or null" : "";
}

class BooleanType : public KeyType {
 public:
  explicit BooleanType(bool& value) : value_(value) {}
  void read(Section& section, const Key& key) override {
    const bool given = section.boolean(key.name, value_);
    if (key.not_yet && given != value_) return section.refuse_yet(key.name, key.not_yet);
    value_ = given;
  }
  Json to_json() const override { return value_; }
  Json schema(const Key& key) const override {
    if (key.not_yet) return {{"const", value_}};
    return {{"type", "boolean"}};
  }
  std::string values() const override { return "true or false"; }

 private:
  bool& value_;
};

class IntegerType : public KeyType {
 public:
  IntegerType(std::optional<std::int64_t>& value, const Range& range, bool nullable)
      : value_(value), range_(range), nullable_(nullable) {}
  void read(Section& section, const Key& key) override {
    if (nullable_) {
      value_ = section.optional_integer(key.name, range_.min, range_.max);
    } else {
      value_ = section.integer(key.name, key.required ? range_.min : *value_, range_.min, range_.max);
    }
  }
  Json to_json() const override { return value_ ? Json(*value_) : Json(); }
  Json schema(const Key&) const override {
    Json schema{{"type", or_null("integer", nullable_)}, {"minimum", range_.min}};
    if (!range_.safeguard_only) schema["maximum"] = range_.max;
    return schema;
  }
  std::string values() const override {
    const bool many = range_.max >= std::numeric_limits<std::int32_t>::max();  // as good as any
    return (many ? "at least " + std::to_string(range_.min)
                 : std::to_string(range_.min) + " to " + std::to_string(range_.max)) +
           or_null_text(nullable_);
  }

 private:
  std::optional<std::int64_t>& value_;
  Range range_;
  bool nullable_;
};

class AutoOrIntegerType : public KeyType {
 public:
  AutoOrIntegerType(int& value, const Range& range, int of_auto) : value_(value), range_(range), of_auto_(of_auto) {}
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given) return;
    if (given->is_scalar() && given->text == kAuto) {
      value_ = of_auto_;
      return;
    }
    const auto parsed = as_integer(*given);
    if (parsed.value && *parsed.value >= range_.min && *parsed.value <= range_.max) {
      value_ = static_cast<int>(*parsed.value);
      return;
    }
    section.report(
        *given, key.name,
        must_be("auto or a whole number from " + std::to_string(range_.min) + " to " + std::to_string(range_.max),
                *given));
  }
  Json to_json() const override { return value_ == of_auto_ ? Json(kAuto) : Json(value_); }
  Json schema(const Key&) const override {
    return {{"anyOf",
             {Json{{"const", kAuto}}, Json{{"type", "integer"}, {"minimum", range_.min}, {"maximum", range_.max}}}}};
  }
  std::string values() const override {
    return "`auto`, or " + std::to_string(range_.min) + " to " + std::to_string(range_.max);
  }

 private:
  static constexpr const char* kAuto = "auto";
  int& value_;
  Range range_;
  int of_auto_;
};

class NumberType : public KeyType {
 public:
  NumberType(std::optional<double>& value, const Bounds& bounds, bool nullable)
      : value_(value), bounds_(bounds), nullable_(nullable) {}
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given) return;
    if (nullable_ && given->is_null()) return value_.reset();
    const double fallback = value_.value_or(1);
    if (bounds_.open) {
      value_ = read_open(section, key, *given, fallback);
      return;
    }
    value_ = section.number(key.name, fallback, bounds_.min, bounds_.max);
    if (bounds_.above_min && value_ == bounds_.min)
      section.report(*given, key.name, must_be("above " + number_json(bounds_.min).dump(), *given));
    if (bounds_.below_max && value_ == bounds_.max)
      section.report(*given, key.name, must_be("below " + number_json(bounds_.max).dump(), *given));
  }
  Json to_json() const override {
    if (!value_) return nullptr;
    return bounds_.real ? Json(*value_) : number_json(*value_);
  }
  Json schema(const Key&) const override {
    Json schema{{"type", or_null("number", nullable_)}};
    schema[bounds_.above_min ? "exclusiveMinimum" : "minimum"] = number_json(bounds_.min);
    schema[bounds_.below_max ? "exclusiveMaximum" : "maximum"] =
        bounds_.open ? Json(std::numeric_limits<double>::max()) : number_json(bounds_.max);
    return schema;
  }
  std::string values() const override {
    const std::string min = (bounds_.above_min ? "above " : "") + number_json(bounds_.min).dump();
    if (bounds_.open) return min + or_null_text(nullable_);
    return min + (bounds_.above_min ? ", to " : " to ") + (bounds_.below_max ? "below " : "") +
           number_json(bounds_.max).dump() + or_null_text(nullable_);
  }

 private:
  // Reads any number above the minimum; refuses a value that is no finite number in the same words.
  double read_open(Section& section, const Key& key, const Value& given, double fallback) const {
    const auto number = as_number(given);
    if (number.value && *number.value > bounds_.min) return *number.value;
    section.report(given, key.name, must_be("a number above " + number_json(bounds_.min).dump(), given));
    return fallback;
  }

  std::optional<double>& value_;
  Bounds bounds_;
  bool nullable_;
};

class NumbersType : public KeyType {
 public:
  NumbersType(std::span<double> values, const Bounds& bounds) : values_(values), bounds_(bounds) {}
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given) return;
    if (given->kind != Value::Kind::kList)
      return section.report(*given, key.name, must_be("a list of " + values_text(), *given));
    if (given->items.size() != values_.size())
      return section.report(*given, key.name,
                            "must be a list of " + values_text() + ", and has " + std::to_string(given->items.size()));
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto number = as_number(given->items[i]);
      const bool good = number.value && *number.value >= bounds_.min && *number.value <= bounds_.max &&
                        !(bounds_.above_min && *number.value == bounds_.min);
      if (!good)
        return section.report(given->items[i], key.name, must_be("a list of " + values_text(), given->items[i]));
      values_[i] = *number.value;
    }
  }
  Json to_json() const override { return std::vector<double>(values_.begin(), values_.end()); }
  Json schema(const Key&) const override {
    Json item{{"type", "number"}};
    item[bounds_.above_min ? "exclusiveMinimum" : "minimum"] = number_json(bounds_.min);
    item["maximum"] = number_json(bounds_.max);
    return {{"type", "array"}, {"minItems", values_.size()}, {"maxItems", values_.size()}, {"items", std::move(item)}};
  }
  std::string values() const override { return "list of " + values_text(); }

 private:
  std::string values_text() const {
    return std::to_string(values_.size()) + " numbers " + (bounds_.above_min ? "above " : "from ") +
           number_json(bounds_.min).dump() + " to " + number_json(bounds_.max).dump();
  }

  std::span<double> values_;
  Bounds bounds_;
};

class WordType : public KeyType {
 public:
  WordType(std::string& value, std::vector<std::string> words, std::vector<std::string> later, bool nullable)
      : value_(value), words_(std::move(words)), later_(std::move(later)), nullable_(nullable) {}
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given) return;
    if (nullable_) value_.clear();
    if (nullable_ && given->is_null()) return;
    std::vector<std::string> choices = words_;
    choices.insert(choices.end(), later_.begin(), later_.end());
    const std::string chosen = section.choice(key.name, value_, choices);
    if (std::find(later_.begin(), later_.end(), chosen) != later_.end()) {
      section.refuse_yet(key.name, key.not_yet);
    } else {
      value_ = chosen;
    }
  }
  Json to_json() const override { return value_.empty() ? Json() : Json(value_); }
  Json schema(const Key&) const override {
    Json words = words_;
    if (nullable_) words.insert(words.begin(), nullptr);
    if (words.size() == 1) return {{"const", words[0]}};
    return {{"enum", std::move(words)}};
  }
  std::vector<std::string> not_yet_words() const override { return later_; }
  std::string values() const override {
    std::vector<std::string> quoted;
    for (const std::string& word : words_) quoted.push_back("`" + word + "`");
    if (nullable_) quoted.emplace_back("null");
    return list_of_choices(quoted);
  }
  std::string what_it_is() const override { return list_of_choices(words_); }

 private:
  std::string& value_;
  std::vector<std::string> words_, later_;
  bool nullable_;
};

constexpr std::size_t kLongestLine = 200;

Json text_schema(const TextRule& rule) {
  Json schema{{"type", {"string", "number", "boolean"}}};  // an editor takes 5 and true for what they look like
  schema.update(Json::parse(rule.schema));
  return schema;
}

void check_text(Section& section, const Key& key, const std::string& text, const TextRule& rule) {
  const Value* given = section.find(key.name);
  if (!given || !given->is_scalar() || !rule.good || rule.good(text)) return;
  const std::string shown = rule.bare ? "'" + text + "'" : describe(*given);
  section.report(
      *given, key.name,
      std::string("must be ") + rule.must_be + ", not " + shown + (rule.why ? rule.why(text) : std::string()));
}

class TextType : public KeyType {
 public:
  TextType(std::string& value, const TextRule& rule) : value_(value), rule_(rule) {}
  void read(Section& section, const Key& key) override {
    value_ = section.text(key.name, value_);
    check_text(section, key, value_, rule_);
  }
  Json to_json() const override { return value_; }
  Json schema(const Key&) const override { return text_schema(rule_); }
  std::string values() const override { return "text"; }

 private:
  std::string& value_;
  const TextRule& rule_;
};

class TextsType : public KeyType {
 public:
  explicit TextsType(std::vector<std::string>& value) : value_(value) {}
  void read(Section& section, const Key& key) override { value_ = section.texts(key.name); }
  Json to_json() const override { return value_; }
  Json schema(const Key&) const override { return {{"type", {"array", "null"}}, {"items", text_schema(kAnyText)}}; }
  std::string values() const override { return "list of texts"; }

 private:
  std::vector<std::string>& value_;
};

class PathType : public KeyType {
 public:
  PathType(std::filesystem::path& value, const TextRule& rule, bool nullable)
      : value_(value), rule_(rule), nullable_(nullable) {}
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given || (nullable_ && given->is_null())) return;
    const std::string text = section.text(key.name, "");
    if (text.empty() && !key.required) return;
    check_text(section, key, text, rule_);
    value_ = (section.folder() / text).lexically_normal();
  }
  Json to_json() const override { return value_.empty() ? Json() : Json(value_.string()); }
  Json schema(const Key&) const override {
    if (!nullable_) return text_schema(rule_);
    return {{"anyOf", {{{"type", "null"}}, text_schema(rule_)}}};
  }
  std::string values() const override { return nullable_ ? "path or null" : "path"; }

 private:
  std::filesystem::path& value_;
  const TextRule& rule_;
  bool nullable_;
};

bool is_one_line(const std::string& text) {
  const auto is_control = [](char letter) { return static_cast<unsigned char>(letter) < 0x20; };
  return !text.empty() && text.size() <= kLongestLine && std::none_of(text.begin(), text.end(), is_control);
}

}  // namespace

void Keys::boolean(const Key& key, bool& value) {
  BooleanType type(value);
  visit(key, type);
}

void Keys::integer(const Key& key, std::int64_t& value, const Range& range) {
  std::optional<std::int64_t> given = value;
  IntegerType type(given, range, false);
  visit(key, type);
  value = *given;
}

void Keys::integer(const Key& key, std::optional<std::int64_t>& value, const Range& range) {
  IntegerType type(value, range, true);
  visit(key, type);
}

void Keys::auto_or_integer(const Key& key, int& value, const Range& range, int of_auto) {
  AutoOrIntegerType type(value, range, of_auto);
  visit(key, type);
}

void Keys::number(const Key& key, double& value, const Bounds& bounds) {
  std::optional<double> given = value;
  NumberType type(given, bounds, false);
  visit(key, type);
  value = *given;
}

void Keys::number(const Key& key, std::optional<double>& value, const Bounds& bounds) {
  NumberType type(value, bounds, true);
  visit(key, type);
}

void Keys::numbers(const Key& key, std::span<double> values, const Bounds& bounds) {
  NumbersType type(values, bounds);
  visit(key, type);
}

void Keys::visit_word(const Key& key, std::string& value, std::vector<std::string> words,
                      std::vector<std::string> later, bool nullable) {
  WordType type(value, std::move(words), std::move(later), nullable);
  visit(key, type);
}

const TextRule kAnyText{};
const TextRule kName{.schema = R"({"minLength": 1})",
                     .good = [](const std::string& text) { return !text.empty(); },
                     .must_be = "a name"};
const TextRule kOneLine{.schema = R"({"minLength": 1, "maxLength": 200, "pattern": "^[^\\x00-\\x1f]*$"})",
                        .good = is_one_line,
                        .must_be = "one line of 1 to 200 bytes"};

void Keys::text(const Key& key, std::string& value, const TextRule& rule) {
  TextType type(value, rule);
  visit(key, type);
}

void Keys::texts(const Key& key, std::vector<std::string>& value) {
  TextsType type(value);
  visit(key, type);
}

void Keys::path(const Key& key, std::filesystem::path& value, const TextRule& rule, bool nullable) {
  PathType type(value, rule, nullable);
  visit(key, type);
}

}  // namespace dtrain::config
