#include "data_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "dtrain/base/error.h"

namespace dtrain::data {

DataFile::DataFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a FIFO by mistake would wait for ever.
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) {
    const int code = errno;
    const auto looked_from =
        path_.is_relative() ? " (looked for from " + std::filesystem::current_path().string() + ")" : "";
    throw DataError(path_.string() + ": cannot be opened: " + std::strerror(code) + looked_from,
                    code == ENOENT ? "check the path, or put the file there" : "");
  }
  struct stat facts {};
  if (::fstat(fd_.get(), &facts) != 0) throw DataError(path_.string() + ": " + std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) throw DataError(path_.string() + ": is not a regular file");
  size_ = static_cast<std::uint64_t>(facts.st_size);
  if (size_ == 0) {
    throw DataError(path_.string() + ": the file is empty", "was it written, copied or downloaded to its end?");
  }
}

std::size_t DataFile::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  std::size_t filled = 0;
  while (filled < into.size()) {
    const auto got =
        ::pread(fd_.get(), into.data() + filled, into.size() - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const std::string reason = std::strerror(errno);
      fail(offset + filled, "cannot be read: " + reason);
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

void DataFile::read_whole(std::uint64_t offset, std::span<std::byte> into) const {
  const std::size_t got = read_at(offset, into);
  if (got == into.size()) return;
  fail(offset + got,
       "truncated: the file ends here, though it had " + std::to_string(size_) + " bytes when it was opened");
}

void DataFile::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  // A file system without this advice reads the data when it is needed.
  static_cast<void>(
      ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

void DataFile::fail(std::uint64_t offset, const std::string& what, const std::string& remedy) const {
  throw DataError(path_.string() + ": offset " + std::to_string(offset) + ": " + what, remedy);
}

void check_index(std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return;
  throw DataError("sample " + std::to_string(index) + " of a data set of " + std::to_string(size));
}

std::string dimension_is_zero(std::size_t dimension) {
  const std::string which = "dimension " + std::to_string(dimension + 1) + " is 0";
  return dimension == 0 ? "the file is empty: it holds no sample (" + which + ")" : which + ": its samples are empty";
}

namespace {

constexpr std::array kGzipMagic{std::byte{0x1f}, std::byte{0x8b}};
constexpr std::size_t kInputBytes = 256 << 10;
constexpr std::uint64_t kMaxDeflateRatio = 1032;  // limit of deflate according to zlib's technical page
// What unpacks to this size, and is then this many times as long as its file, is made to fill memory: sparse tables in
// digits are 100 times as long.
constexpr std::uint64_t kHarmlessBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostTimes = 500;
constexpr int kGzipWindow = 15 + 16;  // largest window, gzip header and check sum

constexpr auto kDamagedRemedy = "copy or download the file again";

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian; so is every machine we run on");

constexpr std::int64_t kPieceBytes = 1 << 20;

// Calls `use` with a number of the tokens' type.
template <typename Use>
auto with_token(TokenType type, const Use& use) {
  switch (type) {
    case TokenType::kUint16:
      return use(std::uint16_t{});
    case TokenType::kUint32:
      return use(std::uint32_t{});
    case TokenType::kInt32:
      return use(std::int32_t{});
    case TokenType::kInt64:
      return use(std::int64_t{});
  }
  throw DataError("unknown type of tokens " + std::to_string(static_cast<int>(type)));
}

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

// Splits a line. Quotes around a column are removed, and "" inside them becomes ".
void split_line(std::string_view line, char delimiter, std::vector<std::string>& columns) {
  columns.clear();
  columns.emplace_back();
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        columns.back() += line[i++];
      } else {
        quoted = !quoted;
      }
    } else if (line[i] == delimiter && !quoted) {
      columns.emplace_back();
    } else {
      columns.back() += line[i];
    }
  }
}

}  // namespace

struct ByteSource::Inflater {
  Inflater() : input(kInputBytes) {
    if (inflateInit2(&stream, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater& operator=(Inflater&&) = delete;

  z_stream stream{};
  std::vector<std::byte> input;
  std::uint64_t next = 0;     // offset in the file after the bytes in `input`
  bool member_ended = false;  // a gzip file may hold several members one after the other
};

ByteSource::ByteSource(std::filesystem::path path) : file_(std::move(path)) {
  std::array<std::byte, 2> start{};
  if (file_.read_at(0, start) == start.size() && start == kGzipMagic) inflater_ = std::make_unique<Inflater>();
}

ByteSource::~ByteSource() = default;
ByteSource::ByteSource(ByteSource&&) noexcept = default;

std::uint64_t ByteSource::size_limit() const {
  return compressed() ? file_.size() * kMaxDeflateRatio : file_.size();
}

void ByteSource::fail(std::uint64_t offset, const std::string& what, const std::string& remedy) const {
  if (!compressed()) file_.fail(offset, what, remedy);
  throw DataError(path().string() + ": offset " + std::to_string(offset) + " of the decompressed data: " + what,
                  remedy);
}

std::size_t ByteSource::read(std::span<std::byte> into) {
  if (compressed()) return read_inflated(into);
  const auto got = file_.read_at(offset_, into);
  offset_ += got;
  return got;
}

void ByteSource::expect_remaining(std::uint64_t bytes, const std::string& promise) const {
  const auto available = size_limit() - std::min(size_limit(), offset_);
  if (bytes > available) {
    fail(compressed() ? offset_ : size_limit(), compressed()
                                                    ? "truncated: a file of this size cannot hold it: " + promise
                                                    : "truncated: the file ends here: " + promise);
  }
  if (!compressed() && bytes < available) {
    fail(offset_ + bytes, std::to_string(available - bytes) + " bytes after the end of the data: " + promise);
  }
}

void ByteSource::read_all(std::span<std::byte> into, const std::string& inside) {
  if (read(into) == into.size()) return;
  if (offset_ == 0) fail(0, "the file is empty", kDamagedRemedy);
  fail(offset_, "truncated: the data ends here" + inside);
}

void ByteSource::expect_end(const std::string& promise) {
  std::byte extra{};
  const auto at = offset_;
  if (read({&extra, 1}) != 0) fail(at, "bytes after the end of the data: " + promise);
}

// Reads the next bytes of the file. False at its end.
bool ByteSource::refill() {
  auto& stream = inflater_->stream;
  const auto got = file_.read_at(inflater_->next, inflater_->input);
  inflater_->next += got;
  stream.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
  stream.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t ByteSource::read_inflated(std::span<std::byte> into) {
  auto& stream = inflater_->stream;
  const auto in_file = [&] { return " (byte " + std::to_string(inflater_->next - stream.avail_in) + " of the file)"; };
  std::size_t filled = 0;
  while (filled < into.size()) {
    if (stream.avail_in == 0 && !refill()) {
      if (inflater_->member_ended) break;
      fail(offset_, "truncated: the file ends inside its gzip data" + in_file(), kDamagedRemedy);
    }
    if (inflater_->member_ended) {
      if (std::byte{*stream.next_in} != kGzipMagic[0])
        fail(offset_, "bytes after the end of the gzip data" + in_file());
      inflateReset(&stream);
      inflater_->member_ended = false;
    }
    const auto room = std::min<std::size_t>(into.size() - filled, std::numeric_limits<uInt>::max());
    stream.next_out = reinterpret_cast<Bytef*>(into.data() + filled);
    stream.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream, Z_NO_FLUSH);
    const auto got = room - stream.avail_out;
    filled += got;
    offset_ += got;
    if (offset_ > kHarmlessBytes && offset_ / kMostTimes > inflater_->next) {
      fail(offset_, "the file unpacks to more than " + std::to_string(kMostTimes) + " times its size",
           "unpack it with gunzip where this is meant: plain files have no such limit");
    }
    if (code == Z_STREAM_END) {
      inflater_->member_ended = true;
    } else if (code == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {  // Z_BUF_ERROR: the next round brings more input
      const std::string reason = stream.msg != nullptr ? stream.msg : "unreadable";
      fail(offset_, "damaged gzip data: " + reason + in_file(), kDamagedRemedy);
    }
  }
  return filled;
}

TokenFile::TokenFile(const std::filesystem::path& path, TokenType type)
    : file_(path),
      type_(type),
      token_bytes_(with_token(type, [](auto token) { return static_cast<std::int64_t>(sizeof token); })) {
  const auto bytes = static_cast<std::uint64_t>(token_bytes_);
  if (file_.size() % bytes != 0) {
    file_.fail(file_.size() / bytes * bytes,
               "the file ends inside a token: its " + std::to_string(file_.size()) +
                   " bytes are no multiple of the token's " + std::to_string(bytes),
               "is it a file of this token type?");
  }
  tokens_ = static_cast<std::int64_t>(file_.size() / bytes);
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> into) const {
  with_token(type_, [&]<typename Token>(Token) { read_as<Token>(first, into); });
}

// The file's bytes are read into the end of `into` and widened from the front. No write overwrites a token that is
// still to be read, because a token in the file is at most as long as an int64.
template <typename Token>
void TokenFile::read_as(std::int64_t first, std::span<std::int64_t> into) const {
  const auto own = std::as_writable_bytes(into).last(into.size() * sizeof(Token));
  file_.read_whole(offset_of(first), own);
  for (std::size_t i = 0; i < into.size(); ++i) {
    Token token{};
    std::memcpy(&token, own.data() + i * sizeof token, sizeof token);
    into[i] = static_cast<std::int64_t>(token);
    if constexpr (std::is_signed_v<Token>) {
      if (token < 0) {
        file_.fail(offset_of(first + static_cast<std::int64_t>(i)),
                   "token id " + std::to_string(token) + " is negative", "is it a file of this token type?");
      }
    }
  }
}

void TokenFile::find(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const {
  with_token(type_, [&]<typename Token>(Token) { find_as<Token>(wanted, found); });
}

template <typename Token>
void TokenFile::find_as(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const {
  std::vector<Token> piece(kPieceBytes / sizeof(Token));
  for (std::int64_t first = 0; first < tokens_; first += static_cast<std::int64_t>(piece.size())) {
    piece.resize(std::min(piece.size(), static_cast<std::size_t>(tokens_ - first)));
    file_.read_whole(offset_of(first), std::as_writable_bytes(std::span(piece)));
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (static_cast<std::int64_t>(piece[i]) == wanted) found(first + static_cast<std::int64_t>(i));
    }
  }
}

bool CsvRows::next(std::vector<std::string>& columns) {
  const std::optional<std::string_view> line = next_line();
  if (line) split_line(*line, delimiter_, columns);
  return line.has_value();
}

// Returns a line that is valid until the next call; empty: no line is left.
std::optional<std::string_view> CsvRows::next_line() {
  for (;;) {
    const std::optional<std::size_t> end = find_end();
    if (!end) return std::nullopt;
    std::string_view line(buffer_.data() + begin_, *end - begin_);
    offset_ = buffer_offset_ + begin_;
    number_ += lines_of_row_;
    lines_of_row_ = 1 + std::count(line.begin(), line.end(), '\n');
    const bool is_first = number_ == 1;
    begin_ = std::min(*end + 1, buffer_.size());
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (is_first && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
    if (!line.empty()) return line;
  }
}

std::optional<std::size_t> CsvRows::find_end() {
  std::size_t at = begin_;
  bool quoted = false;
  for (;;) {
    for (; at < buffer_.size(); ++at) {
      if (buffer_[at] == '"') quoted = !quoted;
      if (buffer_[at] == '\n' && !quoted) return at;
    }
    const std::size_t searched = at - begin_;
    if (!read_more()) {
      if (quoted) fail_next("a quotation mark has no second one");
      return begin_ < buffer_.size() ? std::optional(buffer_.size()) : std::nullopt;
    }
    at = begin_ + searched;
  }
}

bool CsvRows::read_more() {
  buffer_.erase(0, begin_);
  buffer_offset_ += begin_;
  begin_ = 0;
  if (buffer_.size() > kLongestLine) fail_next("the line is longer than 64 MiB", "is it a CSV file?");
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kPiece);
  const std::size_t got = source_.read(std::as_writable_bytes(std::span(buffer_).subspan(before)));
  buffer_.resize(before + got);
  return got > 0;
}

void CsvRows::fail_next(const std::string& what, const std::string& remedy) {
  offset_ = buffer_offset_ + begin_;
  number_ += lines_of_row_;
  fail(what, remedy);
}

void CsvRows::fail(const std::string& what, const std::string& remedy) const {
  source_.fail(offset_, "line " + std::to_string(number_) + ": " + what, remedy);
}

}  // namespace dtrain::data
