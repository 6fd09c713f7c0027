#include "folder/screen.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include <sys/ioctl.h>
#include <unistd.h>

#include "dtrain/base/json_number.h"
#include "dtrain/base/units.h"

namespace dtrain::run {
namespace {
constexpr auto kPlainPeriod = std::chrono::seconds(5);
constexpr auto kAWhile = std::chrono::seconds(10);
constexpr std::string_view kEraseLine = "\r\x1b[2K";

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
    text += "epoch " + std::to_string(std::min(progress.epoch + 1, epochs)) + "/" + std::to_string(epochs) + ", ";
  }
  text += "batch " + std::to_string(progress.batch) + "/" + std::to_string(progress.total_batches);
  if (progress.total_batches > 0) {
    text += " (" + std::to_string(progress.batch * 100 / progress.total_batches) + "%)";
  }
  if (progress.loss && std::isfinite(*progress.loss)) {
    char loss[32];
    std::snprintf(loss, sizeof loss, ", loss %.4f", *progress.loss);
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
  out += text;
  out += '\n';
  out += drawn_;
  write(out);
}

void Screen::activity(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  if (terminal_) draw(text);
}

void Screen::draw(std::string_view text) {
  drawn_ = text.substr(0, static_cast<std::size_t>(terminal_width(fd_).value_or(80) - 1));
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

}  // namespace dtrain::run
