#include "document/value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

namespace dtrain::config {

const Entry* Value::find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

Entry* Value::find(std::string_view key) {
  return const_cast<Entry*>(std::as_const(*this).find(key));
}

std::string describe(const Value& value) {
  using Kind = Value::Kind;
  if (value.kind == Kind::kNull) return "nothing";
  if (value.kind == Kind::kList) return value.items.empty() ? "an empty list" : "a list";
  if (value.kind == Kind::kMap) return value.entries.empty() ? "an empty mapping" : "a mapping";
  return quote(value.text) + (value.quoted ? " (quoted, so text)" : "");
}

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string shown(text.substr(0, kLongest));
  if (text.size() > kLongest) {
    // The text must not end in the middle of a character of several bytes.
    while (!shown.empty() && (static_cast<unsigned char>(text[shown.size()]) & 0xC0) == 0x80) shown.pop_back();
    shown += "...";
  }
  for (char& letter : shown) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) letter = '?';
  }
  return "'" + shown + "'";
}

namespace {

constexpr std::string_view kDigits = "0123456789";

std::string_view without_sign(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return text;
}

bool is_of(std::string_view text, std::string_view letters) {
  return !text.empty() && text.find_first_not_of(letters) == std::string_view::npos;
}

// True for `017`, which is 15 in YAML 1.1, and `08`, which is text there. `007` is 7 in both.
bool is_decimal_with_zero(std::string_view text) {
  text = without_sign(text);
  if (!text.starts_with('0') || !is_of(text, kDigits)) return false;
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  return text.size() > 1 || is_of(text, "89");
}

// True for `1:30` and `12:30:45.5`: numbers to the base of 60 in YAML 1.1.
bool is_sexagesimal(std::string_view text) {
  text = without_sign(text);
  const auto point = text.find('.');
  if (point != std::string_view::npos) {
    const std::string_view rest = text.substr(point + 1);
    if (!rest.empty() && !is_of(rest, "0123456789_")) return false;
    text = text.substr(0, point);
  }
  auto colon = text.find(':');
  const std::string_view first = text.substr(0, colon);
  if (colon == std::string_view::npos || !is_of(first, "0123456789_") || first.starts_with('_')) return false;
  if (point == std::string_view::npos && first.starts_with('0')) return false;
  while (colon != std::string_view::npos) {
    text.remove_prefix(colon + 1);
    colon = text.find(':');
    const std::string_view part = text.substr(0, colon);
    if (!is_of(part, kDigits) || part.size() > 2 || (part.size() == 2 && part[0] > '5')) return false;
  }
  return true;
}

Value plain(std::string text) {
  return {Value::Kind::kScalar, false, {}, std::move(text), {}, {}};
}

// True for `0b101`, `-0x1F`, `0x_1F`: integers in YAML 1.1 alone.
bool is_based_number(std::string_view text) {
  const std::string_view digits = without_sign(text);
  if (digits.starts_with("0b")) return is_of(digits.substr(2), "01_");
  const bool differs = digits.size() < text.size() || digits.find('_') != std::string_view::npos;
  return differs && digits.starts_with("0x") && is_of(digits.substr(2), "0123456789abcdefABCDEF_");
}

// True for `1_000` and `.5_0`: without the underscores they are numbers in both.
bool is_grouped_number(std::string_view text, const std::string& bare) {
  const std::string_view digits = without_sign(text);
  const bool begins = is_of(digits.substr(0, 1), kDigits) || (digits[0] == '.' && is_of(digits.substr(1, 1), kDigits));
  return bare.size() < text.size() && begins && (is_decimal_with_zero(bare) || as_number(plain(bare)).value);
}

}  // namespace

std::optional<bool> as_boolean(const Value& value) {
  if (!value.is_scalar() || value.quoted) return std::nullopt;
  if (value.text == "true" || value.text == "True" || value.text == "TRUE") return true;
  if (value.text == "false" || value.text == "False" || value.text == "FALSE") return false;
  return std::nullopt;
}

Parsed<std::int64_t> as_integer(const Value& value) {
  if (!value.is_scalar() || value.quoted) return {};
  std::string_view text = value.text;
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0o")) {
    base = text[1] == 'x' ? 16 : 8;
    text.remove_prefix(2);
    if (text.starts_with('-')) return {};
  } else if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  if (base == 10 && is_decimal_with_zero(text)) return {};
  std::int64_t result = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result, base);
  if (text.empty() || end != text.data() + text.size()) return {};
  if (code == std::errc::result_out_of_range) return {std::nullopt, NumberError::kOutOfRange};
  if (code != std::errc()) return {};
  return {result};
}

Parsed<double> as_number(const Value& value) {
  if (!value.is_scalar() || value.quoted) return {};
  std::string_view text = value.text;
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::string_view unsigned_text = text;
  if (unsigned_text.starts_with('-')) unsigned_text.remove_prefix(1);
  for (const char* name : {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"}) {
    if (unsigned_text == name) return {std::nullopt, NumberError::kOutOfRange};
  }
  if (is_decimal_with_zero(text)) return {};
  // "inf" and "nan" are words in YAML.
  if (unsigned_text.empty() || unsigned_text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return {};
  double result = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (end != text.data() + text.size()) return {};
  if (code == std::errc::result_out_of_range) return {std::nullopt, NumberError::kOutOfRange};
  if (code != std::errc()) return {};
  return {result};
}

std::string two_meanings(const Value& value) {
  constexpr std::size_t kLongest = 64;  // of what may be a number
  if (!value.is_scalar() || value.quoted || value.text.empty() || value.text.size() > kLongest) return "";
  const std::string& text = value.text;
  const std::string quoted = "\"" + text + "\"";
  const auto differs = [&](const std::string& by_1_1, const std::string& by_1_2, const std::string& instead) {
    return quote(text) + " is " + by_1_1 + " in YAML 1.1 and " + by_1_2 + " in YAML 1.2; write " + instead;
  };
  std::string lower = text;
  for (char& letter : lower) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  for (const char* word : {"yes", "on", "y"}) {
    if (lower == word) return differs("true", "text", "true, or " + quoted);
  }
  for (const char* word : {"no", "off", "n"}) {
    if (lower == word) return differs("false", "text", "false, or " + quoted);
  }
  if (is_decimal_with_zero(text)) {
    const bool octal = text.find_first_of("89") == std::string::npos;
    return differs(octal ? "octal" : "text", "decimal", "the number without zeros before it, or " + quoted);
  }
  if (text.starts_with("0o")) {
    if (const auto number = as_integer(value).value) {
      return differs("text", std::to_string(*number), std::to_string(*number) + ", or " + quoted);
    }
  }
  if (is_sexagesimal(text)) return differs("a number to the base of 60", "text", quoted + ", or the number");
  std::string bare = text;
  std::erase(bare, '_');
  if (is_based_number(text)) return differs("a number", "text", "the decimal number, or " + quoted);
  if (is_grouped_number(text, bare)) return differs("a number", "text", bare + ", or " + quoted);
  return "";
}

Value value_of(const Json& json) {
  Value value;
  if (json.is_object()) {
    value.kind = Value::Kind::kMap;
    for (const auto& [key, inside] : json.items()) value.entries.push_back({key, {}, value_of(inside)});
  } else if (json.is_array()) {
    value.kind = Value::Kind::kList;
    for (const Json& item : json) value.items.push_back(value_of(item));
  } else if (!json.is_null()) {
    value.kind = Value::Kind::kScalar;
    value.quoted = json.is_string();
    value.text = value.quoted ? json.get<std::string>() : json.dump();
  }
  return value;
}

std::optional<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;  // the quote we are in, or 0
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '\\' && quote != '\'') {
      if (++i == text.size()) return std::nullopt;
      word += text[i];
      in_word = true;
    } else if (quote != 0) {
      if (letter == quote) {
        quote = 0;
      } else {
        word += letter;
      }
    } else if (letter == '\'' || letter == '"') {
      quote = letter;
      in_word = true;
    } else if (letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += letter;
      in_word = true;
    }
  }
  if (quote != 0) return std::nullopt;
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace dtrain::config
