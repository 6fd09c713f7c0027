#include "screen.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

#include "dtrain/base/units.h"

namespace dtrain::run {
namespace {
constexpr auto kPlainPeriod = std::chrono::seconds(5);
constexpr std::string_view kEraseLine = "\r\x1b[2K";

}  // namespace

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
  if (!std::isnan(progress.loss)) {
    char loss[32];
    std::snprintf(loss, sizeof loss, ", loss %.4f", progress.loss);
    text += loss;
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

void Screen::progress(const Progress& progress) {
  const std::scoped_lock lock(mutex_);
  if (terminal_) {
    drawn_ = format_progress(progress).substr(0, static_cast<std::size_t>(terminal_width(fd_).value_or(80) - 1));
    write(std::string(kEraseLine) + drawn_);
    return;
  }
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
    if (count <= 0) return;  // nobody reads any more; the files hold everything
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace dtrain::run
