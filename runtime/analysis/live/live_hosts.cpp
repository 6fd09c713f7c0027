#include <algorithm>
#include <cmath>

#include <spdlog/fmt/fmt.h>

#include "live/live_text.h"
#include "live/screen_line.h"
#include "text/numbers.h"

namespace dtrain::analysis {
namespace {

constexpr double kOldS = 3;        // a sample comes twice a second
constexpr std::size_t kGroup = 8;  // cores

std::string percent(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f}%", *value) : "-";
}

std::string rate(const std::optional<double>& bytes) {
  return bytes ? format_bytes(*bytes) + "/s" : "-";
}

std::string used_of(const std::optional<double>& free, const std::optional<double>& total) {
  if (!free) return "-";
  if (!total) return format_bytes(*free) + " free";
  return format_bytes(*total - *free) + " of " + format_bytes(*total);
}

// "98420000 00000000": a digit a core, its tenths; 9 is 90% and more.
std::string cores_text(const std::vector<double>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (i > 0 && i % kGroup == 0) text += ' ';
    text += static_cast<char>('0' + std::clamp<std::int64_t>(to_count(std::floor(cores[i] / 10)), 0, 9));
  }
  return text;
}

std::string gpu_text(const LiveGpu& gpu) {
  std::string text = fmt::format("  GPU {} {}  {}  memory {}", gpu.index, gpu.name, percent(gpu.util_percent),
                                 used_of(gpu.free_bytes, gpu.total_bytes));
  if (gpu.celsius) text += fmt::format("  {:.0f} C", *gpu.celsius);
  if (gpu.throttled) text += "  slowed by heat";
  if (gpu.foreign_processes.value_or(0) > 0) text += fmt::format("  {:.0f} other processes", *gpu.foreign_processes);
  return text;
}

}  // namespace

ScreenLines host_lines(const LiveView& view, const LiveTextOptions& options) {
  if (view.hosts.empty()) return {};
  int widest = 4;
  for (const LiveHost& host : view.hosts) widest = std::max(widest, columns_of(printable(host.host)));
  widest = std::min(widest, 20);
  ScreenLines lines;
  const auto row = [&](const std::string& name, const std::vector<std::string>& cells, const char* style) {
    constexpr int kWidths[] = {5, 8, 22, 13, 13, 13, 13, 8};
    ScreenLine line(options.width, options.color);
    line.left(name, widest, style);
    for (std::size_t i = 0; i < cells.size(); ++i) line.add("  ").right(cells[i], kWidths[i], style);
    return line;
  };
  lines.push_back(
      row("host", {"CPU", "I/O wait", "memory", "sent", "received", "disk read", "written", "requests"}, "2").take());
  for (const LiveHost& host : view.hosts) {
    ScreenLine line =
        row(host.host,
            {percent(host.cpu_percent), percent(host.io_wait_percent), used_of(host.free_bytes, host.total_bytes),
             rate(host.net_sent), rate(host.net_received), rate(host.disk_read), rate(host.disk_written),
             host.disk_requests ? format_rate(*host.disk_requests) : "-"},
            nullptr);
    if (host.age_s > kOldS && !view.ended) line.add("  " + seconds_text(host.age_s) + " ago", "31");
    lines.push_back(line.take());
    if (!host.core_percent.empty()) {
      ScreenLine cores(options.width, options.color);
      lines.push_back(cores.add("  cores ", "2").add(cores_text(host.core_percent)).take());
    }
    for (const LiveGpu& gpu : host.gpus) {
      ScreenLine of_gpu(options.width, options.color);
      lines.push_back(of_gpu.add(gpu_text(gpu), gpu.throttled ? "31" : nullptr).take());
    }
  }
  return lines;
}

}  // namespace dtrain::analysis
