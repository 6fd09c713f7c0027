#include "dtrain/profile/event_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/untrusted.h"
#include "masked_crc.h"

namespace dtrain::profile {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr std::uint64_t kBegin = std::uint64_t{32} << 10;  // of an event: what precedes its picture fits in there
constexpr std::uint64_t kHead = 12, kTail = 4;             // a length with its checksum; the checksum of the event
constexpr std::uint64_t kLongestHistogram = std::uint64_t{1} << 20;
constexpr std::string_view kPngBegins = "\x89PNG\r\n\x1a\n";

template <typename T>
T raw(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// A part of the file, of which only the beginning may have been read.
struct Part {
  std::string_view read;
  std::uint64_t size = 0, offset = 0;
};

// A field of a message of protocol buffers: a number of 64 bits (also one that was stored in 32), or a part.
struct Field {
  unsigned number = 0;
  bool is_part = false;
  std::uint64_t value = 0;
  Part part{};
};

class Fields {
 public:
  explicit Fields(const Part& part) : part_(part) {}

  // Empty: there is no other field, or it is not right, or was not read.
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field{.number = static_cast<unsigned>(*key >> 3)};
    switch (*key & 7) {
      case 0: {
        const auto value = varint();
        if (!value) return std::nullopt;
        field.value = *value;
        return field;
      }
      case 1:
        return fixed<std::uint64_t>(field);
      case 2: {
        const auto size = varint();
        if (!size || *size > part_.size - at_) return std::nullopt;
        field.is_part = true;
        field.part = {part_.read.substr(std::min<std::uint64_t>(at_, part_.read.size()), *size), *size,
                      part_.offset + at_};
        at_ += *size;
        return field;
      }
      case 5:
        return fixed<std::uint32_t>(field);
      default:
        return std::nullopt;
    }
  }

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && at_ < part_.read.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(part_.read[at_++]);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  template <typename T>
  std::optional<Field> fixed(Field field) {
    if (at_ + sizeof(T) > part_.read.size()) return std::nullopt;
    field.value = raw<T>(part_.read.substr(at_));
    at_ += sizeof(T);
    return field;
  }

  Part part_;
  std::uint64_t at_ = 0;
};

// The fields of tensorflow.Event and of what is in it are those that event_file.cpp writes.
void read_value(const Part& value, LoggedEvent event, const std::function<void(const LoggedEvent&)>& use) {
  bool is_whole = false;
  Fields fields(value);
  while (const auto field = fields.next()) {
    if (!field->is_part) continue;
    if (field->number == 1) event.tag = field->part.read;
    if (field->number == 5) {
      event.kind = LoggedEvent::Kind::kHistogram;
      event.offset = field->part.offset;
      event.bytes = field->part.size;
      is_whole = true;
    }
    if (field->number != 4) continue;
    Fields image(field->part);
    while (const auto member = image.next()) {
      if (member->number != 4 || !member->is_part) continue;
      event.kind = LoggedEvent::Kind::kPicture;
      event.offset = member->part.offset;
      event.bytes = member->part.size;
      is_whole = true;
    }
  }
  if (is_whole && !event.tag.empty()) use(event);
}

void read_event(const Part& message, const std::function<void(const LoggedEvent&)>& use) {
  LoggedEvent event;
  std::optional<Part> summary, session;
  Fields fields(message);
  while (const auto field = fields.next()) {
    if (field->number == 2 && !field->is_part) event.step = static_cast<std::int64_t>(field->value);
    if (field->number == 5 && field->is_part) summary = field->part;
    if (field->number == 7 && field->is_part) session = field->part;
  }
  if (session) {
    const auto status = Fields(*session).next();
    if (status && status->number == 1 && status->value == 1) use(event);
  }
  if (!summary) return;
  Fields values(*summary);
  while (const auto value = values.next()) {
    if (value->number == 1 && value->is_part) read_value(value->part, event, use);
  }
}

std::string read_part(const UniqueFd& fd, std::uint64_t offset, std::size_t bytes, const std::filesystem::path& path) {
  std::string text(bytes, '\0');
  std::size_t read = 0;
  while (read < bytes) {
    const ssize_t count = ::pread(fd.get(), text.data() + read, bytes - read, static_cast<off_t>(offset + read));
    if (count < 0) throw SystemError("cannot read " + path.string(), errno);
    if (count == 0) break;
    read += static_cast<std::size_t>(count);
  }
  text.resize(read);
  return text;
}

std::string read_content(const std::filesystem::path& file, const LoggedEvent& event, std::uint64_t most_bytes) {
  if (event.bytes > most_bytes) {
    throw DataError("'" + event.tag + "' of batch " + std::to_string(event.step) + " has " +
                    std::to_string(event.bytes) + " bytes, more than the " + std::to_string(most_bytes) +
                    " bytes that are shown");
  }
  std::string content = read_part(open_regular(file), event.offset, static_cast<std::size_t>(event.bytes), file);
  if (content.size() != event.bytes) throw DataError(file.string() + " has become shorter");
  return content;
}

std::vector<double> doubles(std::string_view bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

}  // namespace

void EventReader::read(const std::function<void(const LoggedEvent&)>& use) {
  const UniqueFd fd = open_regular(path_);
  const off_t end = ::lseek(fd.get(), 0, SEEK_END);
  if (end < 0) throw SystemError("cannot read " + path_.string(), errno);
  const auto size = static_cast<std::uint64_t>(end);
  std::string chunk;
  std::uint64_t begin = 0;  // of the chunk in the file
  while (position_ + kHead + kTail <= size) {
    const auto in_chunk = [&](std::uint64_t bytes) {
      if (position_ < begin || position_ + bytes > begin + chunk.size()) {
        chunk = read_part(fd, begin = position_, kChunk, path_);
      }
      return std::string_view(chunk).substr(position_ - begin, bytes);
    };
    const std::string_view head = in_chunk(kHead);
    if (head.size() < kHead || masked(crc32c(head.substr(0, 8))) != raw<std::uint32_t>(head.substr(8))) return;
    const auto length = raw<std::uint64_t>(head);
    if (length > size - position_ - kHead - kTail) return;
    const std::string_view text = in_chunk(kHead + std::min(length, kBegin)).substr(kHead);
    read_event({text, length, position_ + kHead}, use);
    position_ += kHead + length + kTail;
  }
}

std::string read_picture(const std::filesystem::path& file, const LoggedEvent& event, std::uint64_t most_bytes) {
  std::string picture = read_content(file, event, most_bytes);
  if (!picture.starts_with(kPngBegins)) throw DataError("'" + event.tag + "' is no PNG file");
  return picture;
}

HistogramBins read_histogram(const std::filesystem::path& file, const LoggedEvent& event) {
  const std::string content = read_content(file, event, kLongestHistogram);
  HistogramBins bins;
  Fields fields({content, content.size(), 0});
  double* const numbers[] = {&bins.least, &bins.greatest, &bins.count, &bins.sum};
  while (const auto field = fields.next()) {
    if (field->number >= 1 && field->number <= std::size(numbers) && !field->is_part) {
      std::memcpy(numbers[field->number - 1], &field->value, sizeof(double));
    }
    if (field->number == 6 && field->is_part) bins.limits = doubles(field->part.read);
    if (field->number == 7 && field->is_part) bins.counts = doubles(field->part.read);
  }
  if (bins.limits.size() != bins.counts.size()) {
    throw DataError("the histogram '" + event.tag + "' of batch " + std::to_string(event.step) + " is damaged");
  }
  return bins;
}

}  // namespace dtrain::profile
