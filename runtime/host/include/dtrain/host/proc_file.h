// Reads the kernel's small text files. They report no size. A file may vanish between two reads because its process has
// ended; that is no error. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/text.h"

namespace dtrain::host {

// Returns the whole file; empty optional if it does not exist or cannot be read.
std::optional<std::string> read_proc_file(const std::filesystem::path& path);

// The non-empty fields of a text, one after the other, without allocating: the kernel's files are read twice a second
// during training.
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
  // Returns the next field as a number; 0 if it is none.
  std::uint64_t number() {
    std::string_view field = next().value_or("");
    return take_number<std::uint64_t>(field).value_or(0);
  }
  void skip(int count) {
    for (; count > 0; --count) next();
  }

 private:
  std::string_view text_;
  char separator_;
};

}  // namespace dtrain::host
