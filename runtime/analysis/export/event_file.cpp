#include "export/event_file.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"

namespace dtrain::analysis {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

constexpr std::size_t kPieceBytes = 1 << 20;
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".dtrain";  // by which an export finds the files of an earlier one

// TFRecord stores CRCs of data that may hold CRCs itself: rotated, and a constant added.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8u;
}

template <typename T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Of protocol buffers: a number in groups of seven bits; a field's number with its kind.
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}
void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event(double wall_s, std::int64_t step) {
  std::string message;
  put_key(message, 1, Wire::kFixed64);
  put_raw(message, wall_s);
  put_key(message, 2, Wire::kVarint);
  put_varint(message, static_cast<std::uint64_t>(step));
  return message;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, double wall_s) {
  make_folder(folder);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) std::filesystem::remove(entry.path(), none);
  }
  path_ = folder / fmt::format("{}{:010.0f}{}", kPrefix, std::max(0.0, wall_s), kSuffix);
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd_) throw SystemError("cannot write " + path_.string(), errno);
  std::string message = event(wall_s, 0);
  put_bytes(message, 3, "brain.Event:2");
  record(message);
}

void EventFile::add(double wall_s, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::kFixed32);
    put_raw(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
    ++values_;
  }
  if (summary.empty()) return;
  std::string message = event(wall_s, step);
  put_bytes(message, 5, summary);
  record(message);
}

void EventFile::record(std::string_view message) {
  std::string length;
  put_raw(length, std::uint64_t{message.size()});
  buffer_ += length;
  put_raw(buffer_, masked(crc32c(length)));
  buffer_ += message;
  put_raw(buffer_, masked(crc32c(message)));
  if (buffer_.size() > kPieceBytes) flush();
}

void EventFile::flush() {
  if (write_all(fd_.get(), buffer_) != buffer_.size()) throw SystemError("cannot write " + path_.string(), errno);
  buffer_.clear();
}

}  // namespace dtrain::analysis
