#include "dtrain/base/printable.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

bool is_harmful(std::uint32_t point) {
  const bool control = (point < 0x20 && point != '\n' && point != '\t') || (point >= 0x7F && point <= 0x9F);
  const bool direction = point == 0x61C || point == 0x200E || point == 0x200F || (point >= 0x202A && point <= 0x202E) ||
                         (point >= 0x2066 && point <= 0x2069);
  const bool line = point == 0x2028 || point == 0x2029;
  return control || direction || line;
}

// Returns the length of "\x1b[1;31m" at the beginning; 0: something else is there. Empty: the text ends before it does.
std::optional<std::size_t> length_of_style(std::string_view text) {
  constexpr std::size_t kLongest = 32;
  if (text == "\x1b") return std::nullopt;
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;", 2);
  if (end == std::string_view::npos && text.size() < kLongest) return std::nullopt;
  return end != std::string_view::npos && end < kLongest && text[end] == 'm' ? end + 1 : 0;
}

void append_bytes(std::string& to, std::string_view bytes) {
  for (const char& byte : bytes) to += "\\x" + to_hex({&byte, 1});
}

// Appends the printable form of `text`. Returns the number of bytes at its end that may be the beginning of a character
// or of a style, of which the rest is still missing; they are not appended.
std::size_t append_printable(std::string& to, std::string_view text, Styles styles) {
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead >= 0x20 && lead < 0x7F) {
      std::size_t end = at + 1;
      while (end < text.size() && text[end] >= 0x20 && text[end] < 0x7F) ++end;
      to.append(text, at, end - at);
      at = end;
      continue;
    }
    const auto style = styles == Styles::kKept && lead == 0x1B ? length_of_style(text.substr(at)) : 0;
    if (!style) return text.size() - at;
    if (*style > 0) {
      to.append(text, at, *style);
      at += *style;
      continue;
    }
    const Utf8Character character = first_character(text.substr(at));
    if (character.is_cut_off) return text.size() - at;
    const std::string_view bytes = text.substr(at, std::max<std::size_t>(1, character.length));
    if (character.length == 0) {
      append_bytes(to, bytes);
    } else if (is_harmful(character.point)) {  // all of these have at most 16 bits
      const char halves[] = {static_cast<char>(character.point >> 8), static_cast<char>(character.point)};
      to += "\\u" + to_hex({halves, sizeof halves});
    } else {
      to += bytes;
    }
    at += bytes.size();
  }
  return 0;
}

// A stream of stdio whose text goes to a file descriptor.
struct PrintableStream {
  int fd;
  Styles styles;
  std::string incomplete{};  // a character or a style of which stdio has not passed on the rest
};

ssize_t write_printable(void* cookie, const char* bytes, std::size_t count) {
  auto& stream = *static_cast<PrintableStream*>(cookie);
  const std::string text = stream.incomplete + std::string(bytes, count);
  std::string shown;
  stream.incomplete = text.substr(text.size() - append_printable(shown, text, stream.styles));
  return write_all(stream.fd, shown) == shown.size() ? static_cast<ssize_t>(count) : 0;  // 0: an error, errno is set
}

FILE* open_printable(PrintableStream& stream, int buffering) {
  FILE* const file = ::fopencookie(&stream, "w", {nullptr, write_printable, nullptr, nullptr});
  if (file == nullptr)
    throw SystemError("cannot open a stream for file descriptor " + std::to_string(stream.fd), errno);
  std::setvbuf(file, nullptr, buffering, BUFSIZ);
  return file;
}

}  // namespace

std::string printable(std::string_view text, Styles styles) {
  std::string result;
  result.reserve(text.size());
  const std::size_t incomplete = append_printable(result, text, styles);
  append_bytes(result, text.substr(text.size() - incomplete));
  return result;
}

void make_output_printable() {
  const auto styles_of = [](int fd) { return ::isatty(fd) != 0 ? Styles::kKept : Styles::kNone; };
  // They stay until the process ends: stdio flushes its streams after all other objects are gone.
  static auto* const output = new PrintableStream{STDOUT_FILENO, styles_of(STDOUT_FILENO)};
  static auto* const errors = new PrintableStream{STDERR_FILENO, styles_of(STDERR_FILENO)};
  std::fflush(stdout);
  stdout = open_printable(*output, ::isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF);
  stderr = open_printable(*errors, _IOLBF);
}

}  // namespace dtrain
