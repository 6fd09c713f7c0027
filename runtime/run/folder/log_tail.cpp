#include "dtrain/run/log_tail.h"

#include <algorithm>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {
constexpr std::size_t kLongestLine = 64 * 1024;  // a longer line is passed on in parts
}

void LogTail::add(int rank, std::filesystem::path path) {
  files_.push_back({.rank = rank, .path = std::move(path)});
}

bool LogTail::read(File& file, const Sink& sink) {
  if (!file.fd) file.fd.reset(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.fd) return false;
  bool any = false;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t count = ::pread(file.fd.get(), buffer, sizeof buffer, file.offset);
    if (count <= 0) return any;
    file.offset += count;
    file.partial.append(buffer, static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = file.partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
      sink(file.rank, std::string_view(file.partial).substr(begin, end - begin));
      any = true;
    }
    file.partial.erase(0, begin);
    if (file.partial.size() > kLongestLine) {
      sink(file.rank, file.partial);
      file.partial.clear();
    }
  }
}

bool LogTail::poll(const Sink& sink) {
  bool any = false;
  for (File& file : files_) any |= read(file, sink);
  return any;
}

void LogTail::finish(const Sink& sink) {
  poll(sink);
  for (File& file : files_) {
    if (!file.partial.empty()) sink(file.rank, file.partial);
    file.partial.clear();
  }
}

std::vector<std::string> last_lines(const std::filesystem::path& path, std::size_t count) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return {};
  constexpr off_t kEnough = 64 * 1024;
  const off_t begin = std::max<off_t>(0, info.st_size - kEnough);
  std::string text(static_cast<std::size_t>(info.st_size - begin), '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), begin);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, got)));
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return {};
  std::vector<std::string> lines = split(text, '\n');
  if (begin > 0 && lines.size() > 1) lines.erase(lines.begin());  // its beginning is cut off
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  return lines;
}

void end_torn_line(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return;
  off_t end = info.st_size;
  char last = 0;
  const auto ends_a_line = [&] { return end == 0 || ::pread(fd.get(), &last, 1, end - 1) != 1 || last == '\n'; };
  if (ends_a_line() || ::write(fd.get(), "\n", 1) == 1) return;
  while (!ends_a_line()) --end;
  [[maybe_unused]] const int result = ::ftruncate(fd.get(), end);
}

std::string rank_prefix(int rank) {
  return "[rank=" + std::to_string(rank) + "] ";
}

}  // namespace dtrain::run
