#include "dtrain/profile/event_file.h"

#include <fcntl.h>
#include <png.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "masked_crc.h"

namespace dtrain::profile {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

constexpr std::size_t kPieceBytes = 1 << 20;
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kOfExport = ".dtrain";  // the ending by which an export finds the files of an earlier one
constexpr std::string_view kOfRun = ".run";

// Returns the whole PNG file, compressed with little effort. Error for a picture without pixels, with 2 or more than 4
// channels, or with a number of pixels that does not fit its size.
std::string png_of(const Picture& picture) {
  constexpr std::int64_t kMost = 1'000'000;  // rows and columns: libpng's limit
  constexpr std::array<png_uint_32, 5> kFormats{0, PNG_FORMAT_GRAY, 0, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  const bool has_format = picture.channels == 1 || picture.channels == 3 || picture.channels == 4;
  const bool fits =
      has_format && picture.height > 0 && picture.width > 0 && picture.height <= kMost && picture.width <= kMost &&
      picture.height * picture.width * picture.channels == static_cast<std::int64_t>(picture.pixels.size());
  if (!fits) {
    throw Error("a picture of " + std::to_string(picture.height) + "x" + std::to_string(picture.width) + " with " +
                std::to_string(picture.channels) + " channels cannot be made of " +
                std::to_string(picture.pixels.size()) + " bytes");
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = kFormats[static_cast<std::size_t>(picture.channels)];
  image.flags = PNG_IMAGE_FLAG_FAST;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(size, '\0');
  if (!png_image_write_to_memory(&image, file.data(), &size, 0, picture.pixels.data(), 0, nullptr)) {
    throw Error("a picture of " + std::to_string(picture.pixels.size()) +
                " bytes cannot be compressed: " + image.message);
  }
  file.resize(size);
  return file;
}

template <typename T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Protocol buffers write a number in groups of seven bits, and a field's number together with its kind.
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
void put_number(std::string& out, unsigned field, std::uint64_t value) {
  put_key(out, field, Wire::kVarint);
  put_varint(out, value);
}
void put_double(std::string& out, unsigned field, double value) {
  put_key(out, field, Wire::kFixed64);
  put_raw(out, value);
}

// tensorflow.Event: wall_time 1, step 2, file_version 3, summary 5, session_log 7.
std::string event(double wall_s, std::int64_t step) {
  std::string message;
  put_double(message, 1, wall_s);
  put_number(message, 2, static_cast<std::uint64_t>(step));
  return message;
}

// Returns an event with one value; tensorflow.Summary.Value: tag 1, simple_value 2, image 4, histo 5.
std::string event_with(double wall_s, std::int64_t step, const std::string& tag, unsigned field,
                       std::string_view content) {
  std::string value, summary;
  put_bytes(value, 1, tag);
  put_bytes(value, field, content);
  put_bytes(summary, 1, value);
  std::string message = event(wall_s, step);
  put_bytes(message, 5, summary);
  return message;
}

// Returns the seconds in the name of an event file with this ending; -1: the file is not such a file.
std::int64_t seconds_of(const std::filesystem::path& file, std::string_view ending) {
  const std::string name = file.filename().string();
  if (!name.starts_with(kPrefix) || !name.ends_with(ending) || name.size() < kPrefix.size() + ending.size()) return -1;
  const std::string_view digits(name.data() + kPrefix.size(), name.size() - kPrefix.size() - ending.size());
  return to_number<std::int64_t>(digits).value_or(-1);
}

std::vector<std::filesystem::path> files_with(const std::filesystem::path& folder, std::string_view ending) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (seconds_of(entry.path(), ending) >= 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::filesystem::path file_at(const std::filesystem::path& folder, std::int64_t seconds, std::string_view ending) {
  return folder / fmt::format("{}{:010}{}", kPrefix, seconds, ending);
}

const std::vector<double>& limits() {
  static const std::vector<double> all = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> result;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) result.push_back(-*limit);
    result.push_back(0);
    result.insert(result.end(), positive.begin(), positive.end());
    return result;
  }();
  return all;
}

}  // namespace

Scalars scalars_of(const Json& metrics_line) {
  Scalars scalars;
  const auto values = metrics_line.find("metrics");
  if (values == metrics_line.end() || !values->is_object()) return scalars;
  const std::string kind = text_at(metrics_line, "kind");
  for (const auto& [name, value] : values->items()) {
    if (const auto scalar = number_of(value)) scalars.emplace_back(kind + "/" + name, *scalar);
  }
  for (const char* rate : {"learning_rate", "gradient_norm"}) {
    const auto found = metrics_line.find(rate);
    if (found == metrics_line.end()) continue;
    if (const auto value = number_of(*found)) scalars.emplace_back(kind + "/" + rate, *value);
  }
  return scalars;
}

Histogram::Histogram(std::span<const float> values) : bins_(limits().size()) {
  const auto& bounds = limits();
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    const double x = value;
    least_ = count_ == 0 ? x : std::min(least_, x);
    greatest_ = count_ == 0 ? x : std::max(greatest_, x);
    ++count_;
    sum_ += x;
    squares_ += x * x;
    ++bins_[static_cast<std::size_t>(std::upper_bound(bounds.begin(), bounds.end(), x) - bounds.begin())];
  }
}

// tensorflow.HistogramProto: min 1, max 2, num 3, sum 4, sum_squares 5, bucket_limit 6, bucket 7. Empty bins at both
// ends are left out, except one before the first filled bin, which marks that bin's lower limit.
std::string Histogram::encoded() const {
  const auto is_filled = [](std::int64_t bin) { return bin > 0; };
  auto first = std::find_if(bins_.begin(), bins_.end(), is_filled);
  const auto last = std::find_if(bins_.rbegin(), bins_.rend(), is_filled).base();
  if (first != bins_.begin() && first != bins_.end()) --first;
  std::string bounds, counts;
  for (auto bin = first; bin < last; ++bin) {
    put_raw(bounds, limits()[static_cast<std::size_t>(bin - bins_.begin())]);
    put_raw(counts, static_cast<double>(*bin));
  }
  std::string message;
  put_double(message, 1, least_);
  put_double(message, 2, greatest_);
  put_double(message, 3, static_cast<double>(count_));
  put_double(message, 4, sum_);
  put_double(message, 5, squares_);
  put_bytes(message, 6, bounds);
  put_bytes(message, 7, counts);
  return message;
}

std::string scalars_event(double wall_s, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::kFixed32);
    put_raw(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string message = event(wall_s, step);
  put_bytes(message, 5, summary);
  return message;
}

// tensorflow.Summary.Image: height 1, width 2, colorspace 3, encoded_image_string 4.
std::string picture_event(double wall_s, std::int64_t step, const std::string& tag, const Picture& picture) {
  std::string image;
  put_number(image, 1, static_cast<std::uint64_t>(picture.height));
  put_number(image, 2, static_cast<std::uint64_t>(picture.width));
  put_number(image, 3, static_cast<std::uint64_t>(picture.channels));
  put_bytes(image, 4, png_of(picture));
  return event_with(wall_s, step, tag, 4, image);
}

std::string histogram_event(double wall_s, std::int64_t step, const std::string& tag, const Histogram& histogram) {
  return event_with(wall_s, step, tag, 5, histogram.encoded());
}

// tensorflow.SessionLog: status 1, of which START is 1.
std::string restart_event(double wall_s, std::int64_t first_step) {
  std::string status;
  put_number(status, 1, 1);
  std::string message = event(wall_s, first_step);
  put_bytes(message, 7, status);
  return message;
}

EventFile EventFile::for_export(const std::filesystem::path& folder, double wall_s) {
  make_folder(folder);
  std::error_code none;
  for (const auto& file : files_with(folder, kOfExport)) std::filesystem::remove(file, none);
  const auto seconds = std::llround(std::max(0.0, wall_s));
  return {file_at(folder, seconds, kOfExport), O_TRUNC, wall_s, /*at_once=*/false};
}

EventFile EventFile::for_run(const std::filesystem::path& folder, double wall_s) {
  make_folder(folder);
  std::int64_t seconds = std::llround(std::max(0.0, wall_s));
  for (const auto& file : event_files_of_run(folder)) seconds = std::max(seconds, seconds_of(file, kOfRun) + 1);
  return {file_at(folder, seconds, kOfRun), O_EXCL | O_APPEND, wall_s, /*at_once=*/true};
}

EventFile::EventFile(std::filesystem::path path, int extra_flags, double wall_s, bool at_once)
    : path_(std::move(path)), at_once_(at_once) {
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | extra_flags, 0666));
  if (!fd_) throw SystemError("cannot write " + path_.string(), errno);
  std::string message = event(wall_s, 0);
  put_bytes(message, 3, "brain.Event:2");
  append(message);
}

void EventFile::add(double wall_s, std::int64_t step, const Scalars& scalars) {
  if (scalars.empty()) return;
  values_ += static_cast<std::int64_t>(scalars.size());
  append(scalars_event(wall_s, step, scalars));
}

void EventFile::append(std::string_view message) {
  std::string length;
  put_raw(length, std::uint64_t{message.size()});
  buffer_ += length;
  put_raw(buffer_, masked(crc32c(length)));
  buffer_ += message;
  put_raw(buffer_, masked(crc32c(message)));
  if (at_once_ || buffer_.size() > kPieceBytes) flush();
}

void EventFile::flush() {
  const std::string piece = std::exchange(buffer_, {});
  const std::size_t written = write_all(fd_.get(), piece);
  if (written == piece.size()) return;
  const int error = errno;
  if (at_once_ && written > 0) {
    const auto size = ::lseek(fd_.get(), 0, SEEK_END);
    if (size < 0 || ::ftruncate(fd_.get(), size - static_cast<off_t>(written)) != 0) fd_.reset();  // ends here
  }
  throw SystemError("cannot write " + path_.string(), error);
}

std::vector<std::filesystem::path> event_files_of_run(const std::filesystem::path& folder) {
  return files_with(folder, kOfRun);
}

}  // namespace dtrain::profile
