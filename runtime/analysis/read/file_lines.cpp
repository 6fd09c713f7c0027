#include "read/file_lines.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <simdjson.h>
#include <unistd.h>

namespace dtrain::analysis {

static_assert(FileLines::kPadding >= simdjson::SIMDJSON_PADDING);

FileLines::FileLines(UniqueFd fd, std::size_t chunk) : fd_(std::move(fd)), chunk_(chunk), buffer_(chunk + kPadding) {}

bool FileLines::next(std::string_view& line, bool& cut_off) {
  for (std::size_t searched = begin_;;) {
    const char* const found = static_cast<const char*>(std::memchr(buffer_.data() + searched, '\n', end_ - searched));
    if (found != nullptr || (at_end_ && begin_ < end_)) {
      cut_off = found == nullptr;
      const std::size_t stop = cut_off ? end_ : static_cast<std::size_t>(found - buffer_.data());
      line = {buffer_.data() + begin_, stop - begin_};
      begin_ = cut_off ? stop : stop + 1;
      return true;
    }
    if (at_end_) return false;
    searched = end_ - begin_;
    refill();
  }
}

void FileLines::refill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (buffer_.size() < end_ + chunk_ + kPadding) buffer_.resize(2 * buffer_.size() + chunk_);
  ssize_t got = 0;
  do {
    got = ::read(fd_.get(), buffer_.data() + end_, chunk_);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) at_end_ = true;
  if (got > 0) end_ += static_cast<std::size_t>(got);
}

}  // namespace dtrain::analysis
