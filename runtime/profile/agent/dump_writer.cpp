#include "agent/dump_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/json.h"

namespace dtrain::profile {
namespace {

// The pause between attempts to write to a full disk.
constexpr Nanoseconds kRetryPeriod = std::chrono::milliseconds(500);

constexpr const char* kReplacedNote = R"({"record":"replaced",)";

std::uint64_t count_lines(std::string_view lines) {
  return static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
}

bool write_at(int fd, std::uintmax_t offset, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = ::pwrite(fd, content.data(), content.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    content.remove_prefix(static_cast<std::size_t>(count));
    offset += static_cast<std::uintmax_t>(count);
  }
  return true;
}

// Removes incomplete replacing lines from the end of a dump whose writer was killed; the lines that they were to
// replace stay. If other lines followed the incomplete ones, a reader could not tell them from complete ones.
void cut_torn_replacement(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::file_size(path, ignored) == 0 || ignored) return;
  const std::string content = read_file(path);
  const auto note = content.rfind(kReplacedNote);
  if (note == std::string::npos || (note > 0 && content[note - 1] != '\n')) return;
  const auto end = content.find('\n', note);
  const std::string line = content.substr(note, end == std::string::npos ? end : end - note);
  const Json json = Json::parse(line, nullptr, false);
  const bool whole =
      end != std::string::npos && json.is_object() && content.size() - end - 1 >= json.value("bytes", 0ULL);
  if (!whole) std::filesystem::resize_file(path, note, ignored);
}

}  // namespace

bool DumpWriter::append(std::string_view lines) {
  try {
    if (!file_) {
      cut_torn_replacement(path_);
      file_ = std::make_unique<LineAppender>(path_);
      size_ = std::filesystem::file_size(path_);
    }
    file_->append(lines);
    size_ += lines.size();
    return true;
  } catch (const std::exception& error) {
    if (!error_) error_ = error.what();
  }
  // The first lines may have fitted.
  std::error_code ignored;
  const std::uintmax_t size = file_ ? std::filesystem::file_size(path_, ignored) : 0;
  std::size_t kept = 0;
  if (file_ && !ignored && size > size_) {
    kept = std::min<std::size_t>(lines.size(), size - size_);
    size_ = size;
  }
  const std::uint64_t missing = count_lines(lines.substr(kept));
  lost_ += missing;
  lost_unreported_ += missing;
  next_attempt_ = clock_.monotonic() + kRetryPeriod;
  return false;
}

void DumpWriter::write(std::string_view lines) {
  if (lines.empty()) return;
  if (lost_unreported_ > 0) {
    const Nanoseconds now = clock_.monotonic();
    const std::uint64_t missing = lost_unreported_;
    if (now < next_attempt_) {
      lost_ += count_lines(lines);
      lost_unreported_ += count_lines(lines);
      return;
    }
    const Json note = {
        {"record", "lost"}, {"time_ns", now.count()}, {"count", missing}, {"reason", error_.value_or("")}};
    lost_unreported_ = 0;
    if (append(to_line(note) + "\n")) {
      append(lines);
      return;
    }
    // The note itself is not a record and does not count as lost; the records in its count still have to be reported.
    lost_ -= 1;
    lost_ += count_lines(lines);
    lost_unreported_ = missing + count_lines(lines);
    return;
  }
  append(lines);
}

std::optional<DumpWriter::Mark> DumpWriter::mark() {
  if (!file_ || lost_unreported_ > 0) return std::nullopt;
  return Mark{size_, lost_};
}

std::uintmax_t DumpWriter::written_since(const Mark& mark) const {
  return size_ - mark.size;
}

// Whenever this process ends, or a write fails, a reader finds either the old lines or the new ones. The new lines are
// first appended behind a line that names their place, then copied there, then the rest is cut off. They are at most as
// long as the old lines, so the copy does not overwrite the appended ones.
bool DumpWriter::replace(const Mark& mark, std::string_view lines) {
  const std::uintmax_t room = written_since(mark);
  if (lost_ != mark.lost || (room > 0 && lines.size() > room)) return false;
  if (room == 0) {
    write(lines);
    return true;
  }
  const std::uintmax_t end = size_;
  std::string marked = fmt::format("{}\"offset\":{},\"bytes\":{}}}\n", kReplacedNote, mark.size, lines.size());
  marked += lines;
  std::error_code error;
  try {
    file_->append(marked);
  } catch (const std::exception&) {
    std::filesystem::resize_file(path_, end, error);
    return false;
  }
  size_ += marked.size();
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || !write_at(fd.get(), mark.size, lines)) return true;
  if (::ftruncate(fd.get(), static_cast<off_t>(mark.size + lines.size())) == 0) size_ = mark.size + lines.size();
  return true;
}

void DumpWriter::sync() {
  if (!file_) return;
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && ::fdatasync(fd.get()) == 0) return;
  if (!error_) error_ = SystemError("cannot write " + path_.string() + " to disk", errno).what();
}

}  // namespace dtrain::profile
