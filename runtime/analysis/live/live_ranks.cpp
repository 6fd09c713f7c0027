#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "live/live_text.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr int kGap = 2;
constexpr int kNarrowestBar = 12, kWidestBar = 40;
constexpr double kSilentS = 5;  // without a step; more where steps are long

struct Look {
  Activity activity;
  const char* title;
  char letter;  // of the bar, for output without colours
  const char* style;
};
constexpr Look kLooks[] = {
    {Activity::kLoading, "load", 'l', "33"},    {Activity::kComputing, "comp", 'c', "32"},
    {Activity::kExchange, "exch", 'e', "36"},   {Activity::kWaiting, "wait", 'w', "31"},
    {Activity::kOptimizer, "optim", 'o', "34"}, {Activity::kOther, "other", '.', nullptr},
};

struct RankColumn {
  std::string title;
  int width = 0;
  int rank_of_need = 0;  // a column with a lower number is there first
  std::function<std::string(const LiveRank&)> text;
  bool left = false;
  const char* style = nullptr;  // of the title: the column's colour in the bar
};

double share_of(const RecentSteps& recent, Activity activity) {
  return recent.shares[static_cast<std::size_t>(activity)];
}

std::string rank_percent(double value) {
  return fmt::format("{:.0f}%", value);
}

std::string or_dash(const std::optional<double>& value, const std::function<std::string(double)>& text) {
  return value ? text(*value) : "-";
}

// True if a running rank has ended no batch for long.
bool is_silent(const LiveRank& rank) {
  return rank.recent && rank.ended.empty() && rank.silent_s > std::max(kSilentS, 3 * rank.recent->p99_s);
}

std::vector<RankColumn> all_columns(const LiveView& view) {
  std::set<std::string> hosts;
  int widest = 0;
  for (const LiveRank& rank : view.ranks) {
    hosts.insert(rank.agent);
    widest = std::max(widest, columns_of(printable(rank.host)));
  }
  const auto of_recent = [](const std::function<std::string(const RecentSteps&)>& text) {
    return [text](const LiveRank& rank) { return rank.recent ? text(*rank.recent) : std::string("-"); };
  };
  std::vector<RankColumn> columns = {
      {"rank", 4, 0, [](const LiveRank& rank) { return std::to_string(rank.rank); }},
      {"batch", 9, 6, [](const LiveRank& rank) { return rank.batch > 0 ? count_text(rank.batch) : "-"; }},
      {"batch p50", 9, 1, of_recent([](const RecentSteps& recent) { return seconds_text(recent.p50_s); })},
      {"p99", 8, 8, of_recent([](const RecentSteps& recent) { return seconds_text(recent.p99_s); })},
      {"samples/s", 9, 4, of_recent([](const RecentSteps& recent) { return format_rate(recent.samples_per_s); })}};
  if (hosts.size() > 1) {
    columns.insert(columns.begin() + 1,
                   {"host", std::clamp(widest, 4, 16), 7, [](const LiveRank& rank) { return rank.host; }, true});
  }
  for (const Look& look : kLooks) {
    const bool seldom = look.activity == Activity::kOptimizer || look.activity == Activity::kOther;
    columns.push_back({look.title, 5, seldom ? 10 : 2, of_recent([activity = look.activity](const auto& recent) {
                         return rank_percent(100 * share_of(recent, activity));
                       }),
                       false, look.style});
  }
  if (view.ranks.size() > 1 && view.compared_steps > 0) {
    columns.push_back({"last", 5, 5, of_recent([steps = view.compared_steps](const RecentSteps& recent) {
                         return rank_percent(100.0 * static_cast<double>(recent.came_last) /
                                             static_cast<double>(steps));
                       })});
  }
  columns.push_back({"memory", 9, 3, [](const LiveRank& rank) { return or_dash(rank.resident_bytes, format_bytes); }});
  columns.push_back({"CPU", 5, 9, [](const LiveRank& rank) { return or_dash(rank.cpu_percent, rank_percent); }});
  columns.push_back(
      {"no core", 7, 11, [](const LiveRank& rank) { return or_dash(rank.cpu_wait_percent, rank_percent); }});
  return columns;
}

// Returns the columns that fit, the most needed first, in their order on the screen.
std::vector<RankColumn> columns_for(const LiveView& view, int width) {
  std::vector<RankColumn> columns = all_columns(view);
  std::vector<std::size_t> by_need(columns.size());
  for (std::size_t i = 0; i < by_need.size(); ++i) by_need[i] = i;
  std::ranges::stable_sort(by_need, {}, [&](std::size_t column) { return columns[column].rank_of_need; });
  std::set<std::size_t> chosen;
  int used = -kGap;
  for (const std::size_t i : by_need) {
    if (used + kGap + columns[i].width > width) continue;
    used += kGap + columns[i].width;
    chosen.insert(i);
  }
  std::vector<RankColumn> result;
  for (const std::size_t i : chosen) result.push_back(columns[i]);
  return result;
}

void add_bar(ScreenLine& line, const RecentSteps& recent, int room) {
  double before = 0;
  int drawn = 0;
  for (const Look& look : kLooks) {
    before += share_of(recent, look.activity);
    const int until = std::clamp(static_cast<int>(std::lround(before * room)), drawn, room);
    line.add(std::string(static_cast<std::size_t>(until - drawn), look.letter), look.style);
    drawn = until;
  }
}

// Returns the remark that replaces the bar.
std::string remark_on(const LiveRank& rank) {
  if (!rank.ended.empty()) return rank.ended;
  if (is_silent(rank)) return "no batch for " + seconds_text(rank.silent_s);
  return rank.recent ? "" : "no batch yet";
}

std::string rank_line(const LiveRank& rank, const std::vector<RankColumn>& columns, const LiveTextOptions& options) {
  const std::string remark = remark_on(rank);
  ScreenLine line(options.width, options.color);
  for (const RankColumn& column : columns) {
    // A remark replaces numbers so that it is not cut.
    if (!remark.empty() && line.room() - kGap - column.width < kGap + columns_of(remark)) break;
    if (&column != &columns.front()) line.add("  ");
    if (column.left) {
      line.left(column.text(rank), column.width);
    } else {
      line.right(column.text(rank), column.width);
    }
  }
  line.add("  ");
  if (!remark.empty()) {
    const bool good = rank.ended == "finished" || !rank.recent;
    line.add(remark, good ? "32" : "31");
  } else if (line.room() >= kNarrowestBar) {
    add_bar(line, *rank.recent, std::min(line.room(), kWidestBar));
  }
  return line.take();
}

}  // namespace

ScreenLines rank_lines(const LiveView& view, const LiveTextOptions& options, int room) {
  if (view.ranks.empty() || (room > 0 && room < 2)) return {};
  const std::vector<RankColumn> columns = columns_for(view, options.width);
  ScreenLine title(options.width, options.color);
  for (const RankColumn& column : columns) {
    if (&column != &columns.front()) title.add("  ");
    const char* const style = column.style != nullptr ? column.style : "2";
    if (column.left) {
      title.left(column.title, column.width, style);
    } else {
      title.right(column.title, column.width, style);
    }
  }
  ScreenLines lines = {title.take()};
  const auto count = static_cast<int>(view.ranks.size());
  const bool all = room == 0 || count + 1 <= room;
  const int shown = all ? count : std::max(1, room - 2);
  const int first = std::clamp(options.first_rank, 0, count - shown);
  for (int i = first; i < first + shown; ++i) {
    lines.push_back(rank_line(view.ranks[static_cast<std::size_t>(i)], columns, options));
  }
  if (!all && room > 2) {
    ScreenLine rest(options.width, options.color);
    const auto number = [&](int at) { return view.ranks[static_cast<std::size_t>(at)].rank; };
    rest.add(fmt::format("ranks {} to {} of {}", number(first), number(first + shown - 1), count), "2");
    lines.push_back(rest.take());
  }
  return lines;
}

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

// Returns text on cgroups: the owner of the shown memory limit, and the CPU quota if it is used up.
std::string limits_text(const LiveHost& host) {
  std::string text = host.memory_of.empty() ? "" : "memory: the limit of " + host.memory_of;
  if (host.throttled_percent.value_or(0) >= 1) {
    text +=
        fmt::format("{}CPU quota used up in {:.0f}% of its periods", text.empty() ? "" : "; ", *host.throttled_percent);
  }
  return text;
}

// Returns a digit for each core, its utilization in tenths, 9 for 90% and more: "98420000 00000000".
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
    if (const std::string limits = limits_text(host); !limits.empty()) {
      ScreenLine of_limits(options.width, options.color);
      lines.push_back(of_limits.add("  " + limits, host.throttled_percent.value_or(0) >= 1 ? "31" : "2").take());
    }
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
