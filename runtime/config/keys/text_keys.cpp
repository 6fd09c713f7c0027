// Keys whose value is a text, a list of texts or the path of a file.
#include <algorithm>

#include "dtrain/config/keys.h"
#include "keys/key_reader.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kLongestLine = 200;

Json text_schema(const TextRule& rule) {
  Json schema{{"type", {"string", "number", "boolean"}}};  // an editor takes 5 and true for what they look like
  schema.update(Json::parse(rule.schema));
  return schema;
}

// Reports a text that breaks the rule.
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

bool is_filled(const std::string& text) {
  return !text.empty();
}

}  // namespace

const TextRule kAnyText{};
const TextRule kName{.schema = R"({"minLength": 1})", .good = is_filled, .must_be = "a name"};
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
