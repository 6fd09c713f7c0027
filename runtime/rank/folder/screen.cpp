// Progress on the screen (screen.h), and the lines of the ranks' log files that are shown there
// (dtrain/rank/screen.h).
#include "dtrain/rank/screen.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/json.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"

namespace dtrain::rank {
namespace {

constexpr auto kPlainPeriod = std::chrono::seconds(5);
constexpr auto kAWhile = std::chrono::seconds(10);
constexpr std::string_view kEraseLine = "\r\x1b[2K";
constexpr std::size_t kLongestLine = 64 * 1024;  // a longer line is passed on in parts

// Opens a log; none if it cannot be read.
UniqueFd open_if_regular(const std::filesystem::path& path) {
  try {
    return open_regular(path);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::optional<int> terminal_width(int fd) {
  winsize size{};
  if (::isatty(fd) == 0) return std::nullopt;
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string format_progress(const Progress& progress) {
  std::string text;
  if (progress.batches_per_epoch > 0) {
    const std::int64_t epochs = std::max<std::int64_t>(
        1, (progress.total_batches + progress.batches_per_epoch - 1) / progress.batches_per_epoch);
    const bool is_known = progress.total_batches > 0;
    text += "epoch " + std::to_string(is_known ? std::min(progress.epoch + 1, epochs) : progress.epoch + 1) +
            (is_known ? "/" + std::to_string(epochs) : "") + ", ";
  }
  text += "batch " + std::to_string(progress.batch);
  if (progress.total_batches > 0) {
    text += "/" + std::to_string(progress.total_batches) + " (" +
            std::to_string(progress.batch * 100 / progress.total_batches) + "%)";
  }
  if (progress.loss && std::isfinite(*progress.loss)) {
    const double size = std::abs(*progress.loss);
    const bool short_enough = size == 0 || (size >= 0.001 && size < 1e6);
    char loss[32];
    std::snprintf(loss, sizeof loss, short_enough ? ", loss %.4f" : ", loss %.4g", *progress.loss);
    text += loss;
  } else if (progress.loss) {
    text += ", loss " + non_finite_text(*progress.loss);
  }
  if (progress.samples_per_second > 0) text += ", " + format_rate(progress.samples_per_second) + " samples/s";
  if (progress.seconds_left >= 0) {
    text += ", " + format_duration(Nanoseconds(static_cast<std::int64_t>(progress.seconds_left * 1e9))) + " left";
  }
  if (progress.activity != "training") text += ", " + progress.activity;
  return text;
}

void Screen::line(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  std::string out;
  if (!drawn_.empty()) out += kEraseLine;
  // Of a progress bar, which a program draws over itself, the last state; its colours are its own.
  while (text.ends_with('\r')) text.remove_suffix(1);
  text.remove_prefix(text.rfind('\r') + 1);  // npos + 1 is 0
  out += printable(text, Styles::kKept);
  out += '\n';
  out += drawn_;
  write(out);
}

void Screen::activity(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  if (terminal_) draw(text);
}

void Screen::draw(std::string_view text) {
  drawn_ = printable(text.substr(0, static_cast<std::size_t>(terminal_width(fd_).value_or(80) - 1)));
  write(std::string(kEraseLine) + drawn_);
}

void Screen::show_later_line() {
  const Nanoseconds now = clock_.monotonic();
  std::function<std::string()> text;
  {
    const std::scoped_lock lock(mutex_);
    if (!first_) first_ = now;
    if (!later_ || now - *first_ < kAWhile) return;
    text = std::exchange(later_, nullptr);
  }
  if (const std::string shown = text(); !shown.empty()) line(shown);
}

void Screen::progress(const Progress& progress) {
  show_later_line();
  const std::scoped_lock lock(mutex_);
  if (terminal_) return draw(format_progress(progress));
  const Nanoseconds now = clock_.monotonic();
  if (printed_ && now - *printed_ < kPlainPeriod) {
    unshown_ = progress;
    return;
  }
  write(format_progress(progress) + "\n");
  printed_ = now;
  unshown_.reset();
}

void Screen::end_progress() {
  const std::scoped_lock lock(mutex_);
  if (!drawn_.empty()) write("\n");
  if (unshown_) write(format_progress(*unshown_) + "\n");
  drawn_.clear();
  unshown_.reset();
}

void Screen::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the reader is gone; the files hold everything
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void LogTail::add(int rank, std::filesystem::path path) {
  files_.push_back({.rank = rank, .path = std::move(path)});
}

bool LogTail::read(File& file, const Sink& sink) {
  if (!file.fd) file.fd = open_if_regular(file.path);
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
  const UniqueFd fd = open_if_regular(path);
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
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
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

}  // namespace dtrain::rank
