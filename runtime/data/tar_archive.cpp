#include "tar_archive.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"

namespace dtrain::data {
namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kLongestText = 1 << 20;  // longest name or pax records, in bytes
constexpr std::size_t kShown = 80;               // letters of a name that an error shows

// The place of a field in a header.
struct Part {
  std::size_t at, size;
};
constexpr Part kNameField{0, 100}, kModeField{100, 8}, kOwnerField{108, 8}, kGroupField{116, 8}, kSizeField{124, 12},
    kTimeField{136, 12}, kChecksumField{148, 8}, kTypeField{156, 1}, kMagicField{257, 8}, kPrefixField{345, 155};
constexpr char kRegular = '0', kOldRegular = '\0', kContiguous = '7', kGnuName = 'L', kGnuLink = 'K', kPax = 'x',
               kPaxGlobal = 'g';

using Block = std::array<unsigned char, kBlock>;

std::string text_in(const Block& block, const Part& part) {
  const auto* first = reinterpret_cast<const char*>(block.data()) + part.at;
  return {first, strnlen(first, part.size)};
}

// Reads octal digits or, if the first bit is set, a binary number (GNU).
std::optional<std::uint64_t> number_in(const Block& block, const Part& part) {
  const unsigned char* const first = block.data() + part.at;
  if ((first[0] & 0x80) != 0) {
    std::uint64_t value = first[0] & 0x7f;
    for (std::size_t i = 1; i < part.size; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | first[i];
    }
    return value;
  }
  std::string text = text_in(block, part);
  text.erase(0, text.find_first_not_of(' '));
  text.erase(std::find(text.begin(), text.end(), ' '), text.end());
  return to_number<std::uint64_t>(text, 8);
}

std::uint64_t sum_of(const Block& block) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    sum += i >= kChecksumField.at && i < kChecksumField.at + kChecksumField.size ? ' ' : block[i];
  }
  return sum;
}

std::uint64_t whole_blocks(std::uint64_t bytes) {
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Reads name and size from "LENGTH KEY=VALUE\n" records; false: the records are damaged.
bool read_pax(std::string_view records, std::optional<std::string>& name, std::optional<std::uint64_t>& size) {
  while (!records.empty() && records.front() != '\0') {
    std::string_view record = records;
    const std::uint64_t length = take_number<std::uint64_t>(record).value_or(0);
    const std::uint64_t digits = records.size() - record.size();
    if (length > records.size() || length < digits + 3 || record.front() != ' ') return false;
    record = record.substr(1, length - digits - 2);
    const auto equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals);
    std::string_view value = record.substr(equals + 1);
    if (key == "path") name = std::string(value);
    if (key == "size") {
      size = take_number<std::uint64_t>(value);
      if (!size) return false;
    }
    records.remove_prefix(length);
  }
  return true;
}

bool is_compressed(const Block& block) {
  constexpr std::array<unsigned char, 2> kGzip{0x1f, 0x8b};
  constexpr std::array<unsigned char, 4> kZstd{0x28, 0xb5, 0x2f, 0xfd};
  return std::equal(kGzip.begin(), kGzip.end(), block.begin()) || std::equal(kZstd.begin(), kZstd.end(), block.begin());
}

constexpr std::size_t kBuffered = 1 << 20;

void put(Block& block, const Part& part, std::string_view value) {
  std::memcpy(block.data() + part.at, value.data(), std::min(value.size(), part.size));
}

// Writes the number with leading zeros and a NUL at its end.
void put_octal(Block& block, const Part& part, std::uint64_t value) {
  for (std::size_t i = part.size - 1; i-- > 0; value >>= 3) {
    block[part.at + i] = static_cast<unsigned char>('0' + (value & 7));
  }
}

std::string header_of(std::string_view name, std::uint64_t size, char type) {
  Block block{};
  put(block, kNameField, name);
  put_octal(block, kModeField, 0644);
  put_octal(block, kOwnerField, 0);
  put_octal(block, kGroupField, 0);
  put_octal(block, kSizeField, size);
  put_octal(block, kTimeField, 0);
  block[kTypeField.at] = static_cast<unsigned char>(type);
  put(block, kMagicField, std::string_view("ustar\00000", 8));
  put_octal(block, {kChecksumField.at, kChecksumField.size - 1}, sum_of(block));
  block[kChecksumField.at + kChecksumField.size - 1] = ' ';
  return {reinterpret_cast<const char*>(block.data()), kBlock};
}

// Returns a pax record, which contains its own length.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (std::to_string(length).size() + rest != length) length = std::to_string(length).size() + rest;
  return std::to_string(length) + " " + std::string(key) + "=" + std::string(value) + "\n";
}

std::string padding_of(std::uint64_t size) {
  return std::string(whole_blocks(size) - size, '\0');
}

}  // namespace

struct TarReader::Header {
  bool is_end = false;
  char type = kRegular;
  std::string name;
  std::uint64_t size = 0;
};

TarReader::Header TarReader::read_header(std::uint64_t offset) const {
  Block block;
  if (file_.read_at(offset, std::as_writable_bytes(std::span(block))) < kBlock) {
    file_.fail(offset, "truncated: the archive ends here without its end mark", "was it written or copied to its end?");
  }
  Header header;
  if (std::all_of(block.begin(), block.end(), [](unsigned char byte) { return byte == 0; })) {
    header.is_end = true;
    return header;
  }
  if (offset == 0 && is_compressed(block)) {
    file_.fail(0, "the archive is compressed as a whole, and nothing can be read out of its middle",
               "decompress it: pictures are compressed by themselves");
  }
  if (number_in(block, kChecksumField) != sum_of(block)) {
    file_.fail(offset, "no header of a tar member (its checksum is wrong)",
               "is the file a tar archive, and undamaged?");
  }
  header.type = static_cast<char>(block[kTypeField.at]);
  const auto size = number_in(block, kSizeField);
  if (!size) file_.fail(offset + kSizeField.at, "the size of a tar member is no number");
  header.size = *size;
  header.name = text_in(block, kNameField);
  if (std::memcmp(block.data() + kMagicField.at, "ustar\0", 6) == 0) {
    const std::string prefix = text_in(block, kPrefixField);
    if (!prefix.empty()) header.name = prefix + "/" + header.name;
  }
  return header;
}

std::string TarReader::text(std::uint64_t offset, std::uint64_t size) const {
  if (size > kLongestText) {
    file_.fail(offset, "a name or extended header of " + std::to_string(size) + " bytes, and at most " +
                           std::to_string(kLongestText) + " are read");
  }
  std::string content(size, '\0');
  if (file_.read_at(offset, std::as_writable_bytes(std::span(content))) < size) {
    file_.fail(offset, "truncated: the archive ends inside the header of a member");
  }
  return content;
}

std::optional<TarMember> TarReader::next() {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size;
  const std::uint64_t first = next_;
  for (;;) {
    const Header header = read_header(next_);
    if (header.is_end) return std::nullopt;
    const std::uint64_t content = next_ + kBlock;
    const bool is_file = header.type == kRegular || header.type == kOldRegular || header.type == kContiguous;
    const std::uint64_t bytes = is_file ? size.value_or(header.size) : header.size;
    if (bytes > file_.size() - std::min(file_.size(), content)) {
      const std::string shown = name.value_or(header.name).substr(0, kShown);
      file_.fail(next_,
                 "truncated: the member " + shown + " has " + std::to_string(bytes) + " bytes, and the file ends at " +
                     std::to_string(file_.size()),
                 "was it written or copied to its end?");
    }
    const std::uint64_t header_at = next_;
    next_ = content + whole_blocks(bytes);
    if (is_file) return TarMember{name.value_or(header.name), first, content, bytes};
    if (header.type == kGnuName) {
      name = text(content, bytes);
      name->resize(strnlen(name->data(), name->size()));
    } else if (header.type == kPax) {
      if (!read_pax(text(content, bytes), name, size)) file_.fail(header_at, "a damaged extended header of a member");
    } else if (header.type != kGnuLink && header.type != kPaxGlobal) {
      // The extended headers of a folder, a link or the like apply only to that member.
      name.reset();
      size.reset();
    }
  }
}

std::string TarReader::content(const TarMember& member) const {
  return text(member.offset, member.size);
}

TarWriter::TarWriter(std::filesystem::path path) : path_(std::move(path)) {
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd_) throw SystemError(path_.string() + ": cannot be made", errno);
}

void TarWriter::write(std::string_view content) {
  if (write_all(fd_.get(), content) < content.size()) throw SystemError(path_.string() + ": cannot be written", errno);
}

void TarWriter::add(const std::string& name, std::string_view content) {
  constexpr std::uint64_t kLargestOctal = (std::uint64_t{1} << 33) - 1;
  std::string records;
  if (name.size() > kNameField.size) records += pax_record("path", name);
  if (content.size() > kLargestOctal) records += pax_record("size", std::to_string(content.size()));
  const std::size_t before = buffer_.size();
  if (!records.empty())
    buffer_ += header_of("././@PaxHeader", records.size(), kPax) + records + padding_of(records.size());
  buffer_ += header_of(name, content.size() > kLargestOctal ? 0 : content.size(), kRegular);
  bytes_ += buffer_.size() - before + whole_blocks(content.size());
  if (buffer_.size() + content.size() > kBuffered) {
    write(buffer_);
    write(content);
    buffer_ = padding_of(content.size());
  } else {
    buffer_ += content;
    buffer_ += padding_of(content.size());
  }
}

void TarWriter::close() {
  buffer_.append(2 * kBlock, '\0');
  bytes_ += 2 * kBlock;
  write(buffer_);
  buffer_.clear();
  if (::fsync(fd_.get()) != 0) throw SystemError(path_.string() + ": cannot be written", errno);
  fd_.reset();
}

}  // namespace dtrain::data
