// Cutting the kernel's text files into fields without allocating: they are read twice a second beside the training.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtrain::host {

// 0 where there is no number.
inline std::uint64_t to_number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The non-empty fields of a text, one after the other.
class Fields {
 public:
  Fields(std::string_view text, char separator) : text_(text), separator_(separator) {}

  std::optional<std::string_view> next() {
    while (!text_.empty() && text_.front() == separator_) text_.remove_prefix(1);
    if (text_.empty()) return std::nullopt;
    const std::string_view field = text_.substr(0, text_.find(separator_));
    text_.remove_prefix(field.size());
    return field;
  }
  std::uint64_t number() { return to_number(next().value_or("")); }
  void skip(int count) {
    for (; count > 0; --count) next();
  }

 private:
  std::string_view text_;
  char separator_;
};

}  // namespace dtrain::host
