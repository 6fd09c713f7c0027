#include "dtrain/analysis/dump_reader.h"

#include <cstring>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/fd.h"
#include "dump_parse.h"
#include "json_fields.h"

namespace dtrain::analysis {
namespace {

constexpr int kNewestSchema = 1;
constexpr std::size_t kChunk = std::size_t{1} << 20;

// The lines of a file, in memory that may be read kPadding bytes beyond each line's end, as the parser does.
class Lines {
 public:
  explicit Lines(UniqueFd fd) : fd_(std::move(fd)), buffer_(kChunk + simdjson::SIMDJSON_PADDING) {}

  // The next line without its newline; valid until the next call. `cut_off`: there was no newline.
  bool next(std::string_view& line, bool& cut_off) {
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

 private:
  void refill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    if (buffer_.size() < end_ + kChunk + simdjson::SIMDJSON_PADDING) buffer_.resize(2 * buffer_.size() + kChunk);
    ssize_t got = 0;
    do {
      got = ::read(fd_.get(), buffer_.data() + end_, kChunk);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) at_end_ = true;
    if (got > 0) end_ += static_cast<std::size_t>(got);
  }

  UniqueFd fd_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
};

// False for a kind it does not know.
bool dispatch(const Object& object, std::string_view kind, std::string_view line, DumpHandler& handler) {
  if (kind == "step") {
    handler.step(parse_step(object));
  } else if (kind == "collective") {
    handler.collective(parse_collective(object));
  } else if (kind == "loader") {
    handler.loader(parse_loader(object));
  } else if (kind == "system") {
    handler.system(parse_system(object));
  } else if (kind == "gpu") {
    handler.gpu(parse_gpu(object));
  } else if (kind == "part") {
    handler.part(parse_part(object));
  } else if (kind == "clock") {
    handler.clock(parse_clock(object));
  } else if (kind == "memory") {
    handler.memory(parse_memory(object));
  } else if (kind == "window") {
    WindowSketches sketches;
    const WindowLine window = parse_window(object, sketches);
    handler.window(window, sketches);
  } else if (kind == "header") {
    handler.header(Json::parse(line, nullptr, false));
  } else if (kind == "dropped") {
    handler.dropped(integer_of(object, "count"));
  } else if (kind == "lost") {
    handler.lost(integer_of(object, "count"), std::string(text_of(object, "reason")));
  } else if (kind == "end") {
    handler.end(parse_end(object));
  } else {
    return false;
  }
  return true;
}

}  // namespace

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler) {
  ReadResult result;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    result.error = "cannot read " + path.string();
    return result;
  }
  Lines lines(std::move(fd));
  simdjson::dom::parser parser;
  bool cut_off = false;
  for (std::string_view line; lines.next(line, cut_off);) {
    if (line.empty()) continue;
    Object object;
    std::string_view kind;
    if (parser.parse(line.data(), line.size(), false).get(object) == simdjson::SUCCESS)
      kind = text_of(object, "record");
    if (kind.empty()) {
      cut_off ? void(result.torn_end = true) : void(++result.unreadable);
      continue;
    }
    if (kind == "header" && integer_of(object, "schema") > kNewestSchema) {
      result.error = path.string() + " has schema " + std::to_string(integer_of(object, "schema")) +
                     "; this dtrain reads " + std::to_string(kNewestSchema) +
                     " and older: use the dtrain that wrote it, or a newer one";
      return result;
    }
    ++(dispatch(object, kind, line, handler) ? result.lines : result.unknown);
  }
  return result;
}

}  // namespace dtrain::analysis
