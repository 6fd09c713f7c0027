#include "live/live_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

bool goes_on(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// Returns the number of bytes of the character that begins at `at`.
std::size_t length_of(std::string_view text, std::size_t at) {
  std::size_t end = at + 1;
  while (end < text.size() && goes_on(text[end])) ++end;
  return end - at;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first < 0x20 || first == 0x7f) return true;
  return first == 0xc2 && character.size() == 2 && static_cast<unsigned char>(character[1]) < 0xa0;  // U+0080 to U+009F
}

std::string_view cut(std::string_view text, int columns) {
  std::size_t end = 0;
  for (int i = 0; i < columns && end < text.size(); ++i) end += length_of(text, end);
  return text.substr(0, end);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, length_of(text, at));
    result += !is_valid_utf8(character) || is_control(character) ? "?" : character;
    at += character.size();
  }
  return result;
}

int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char byte) { return !goes_on(byte); }));
}

ScreenLine& ScreenLine::add(std::string_view text, const char* style) {
  const std::string shown = printable(text);
  const std::string_view fits = cut(shown, room_);
  room_ -= columns_of(fits);
  if (!color_ || style == nullptr || fits.empty()) {
    text_ += fits;
    return *this;
  }
  text_ += "\x1b[";
  text_ += style;
  text_ += "m";
  text_ += fits;
  text_ += "\x1b[0m";
  return *this;
}

ScreenLine& ScreenLine::left(std::string_view text, int columns, const char* style) {
  const std::string shown(cut(printable(text), columns));
  add(shown, style);
  return add(std::string(static_cast<std::size_t>(columns - columns_of(shown)), ' '));
}

ScreenLine& ScreenLine::right(std::string_view text, int columns, const char* style) {
  const std::string shown(cut(printable(text), columns));
  add(std::string(static_cast<std::size_t>(columns - columns_of(shown)), ' '));
  return add(shown, style);
}

std::string ScreenLine::take() {
  while (!text_.empty() && text_.back() == ' ') text_.pop_back();
  return std::move(text_);
}

namespace {

constexpr std::array kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// Returns the points by the column of their last batch.
std::vector<std::optional<CurvePoint>> columns_of_points(std::span<const CurvePoint> points, int columns) {
  std::vector<std::optional<CurvePoint>> result(static_cast<std::size_t>(columns));
  const std::int64_t first = points.front().batch;
  const double width = static_cast<double>(points.back().batch - first) / columns;
  for (const CurvePoint& point : points) {
    const double column = width > 0 ? static_cast<double>(point.batch - first) / width : 0;
    auto& at = result[std::min(result.size() - 1, static_cast<std::size_t>(column))];
    at = at ? together(std::array{*at, point}) : point;
  }
  return result;
}

}  // namespace

std::string draw_curve(std::span<const CurvePoint> points, int columns) {
  if (points.empty() || columns <= 0) return {};
  const auto drawn = columns_of_points(points, columns);
  std::optional<double> low, high;
  for (const auto& point : drawn) {
    if (!point || point->finite == 0) continue;
    low = std::min(low.value_or(point->mean), point->mean);
    high = std::max(high.value_or(point->mean), point->mean);
  }
  std::string text, last = " ";
  for (const auto& point : drawn) {
    if (point && point->finite == 0) {
      last = "x";
    } else if (point) {
      const double share = *high > *low ? (point->mean - *low) / (*high - *low) : 0.5;
      last = kBlocks[std::min(kBlocks.size() - 1, static_cast<std::size_t>(share * kBlocks.size()))];
    }
    text += last;
  }
  return text;
}

namespace {

constexpr int kFewestListLines = 3;  // a title, and two more
constexpr int kSmallScreen = 12;     // lines
constexpr int kCurveName = 24;       // columns
constexpr int kMostCurveColumns = 60;
constexpr int kFewestCurveColumns = 10;
constexpr int kCurveRange = 26;  // columns: "  -1.234e-05 to -1.234e-05"

// True if the screen has so few lines that ranks matter more than notes.
bool is_small(const LiveTextOptions& options) {
  return options.height > 0 && options.height < kSmallScreen;
}

std::string metrics_text(const LiveMetrics& metrics) {
  std::string text;
  const auto add = [&](const std::string& name, double value) {
    text += fmt::format("{}{} {:.4g}", text.empty() ? "" : ", ", name, value);
  };
  const auto loss = metrics.values.find("loss");
  if (loss != metrics.values.end()) add(loss->first, loss->second);
  for (const auto& [name, value] : metrics.values) {
    if (name != "loss") add(name, value);
  }
  return text;
}

std::string progress_text(const LiveView& view) {
  std::string text = "batch " + count_text(view.batch);
  if (view.total_batches) {
    text += fmt::format("/{} ({}%)", count_text(*view.total_batches),
                        to_count(100.0 * static_cast<double>(view.batch) / static_cast<double>(*view.total_batches)));
  }
  if (view.batches_per_epoch && view.batch > 0) {
    text += fmt::format("   epoch {}", view.epoch + 1);
    if (view.total_batches) {
      text += fmt::format("/{}", (*view.total_batches + *view.batches_per_epoch - 1) / *view.batches_per_epoch);
    }
  }
  if (view.left_s) text += "   " + seconds_text(*view.left_s) + " left";
  return text;
}

std::string range_text(std::span<const CurvePoint> points) {
  const CurvePoint all = together(points);
  if (all.finite == 0) return "nan or infinite";
  return fmt::format("{:.4g} to {:.4g}", all.low, all.high);
}

std::string checkpoint_text(const LiveView& view) {
  const LiveCheckpoint& checkpoint = view.checkpoint;
  std::string text;
  if (checkpoint.step) {
    text = fmt::format("checkpoint of batch {}, {} ago, {}", count_text(*checkpoint.step),
                       seconds_text(checkpoint.age_s), format_bytes(checkpoint.bytes));
  }
  if (checkpoint.saving) {
    text += fmt::format("{}saving that of batch {} now", text.empty() ? "" : "; ", count_text(*checkpoint.saving));
  }
  if (text.empty() && !checkpoint.trouble.empty()) text = "no checkpoint yet";
  return text;
}

std::string recoveries_text(const LiveView& view) {
  if (view.attempts <= 1) return {};
  std::string text = fmt::format("attempt {}, recovered {}, {} again", count_text(view.attempts),
                                 count_text(view.recoveries, "time"), count_text(view.batches_again, "batch"));
  if (view.useful_time) text += "; " + text_of(*view.useful_time);
  return text;
}

std::string host_count(const LiveView& view) {
  std::set<std::string> hosts;
  for (const LiveRank& rank : view.ranks) hosts.insert(rank.agent);
  return hosts.empty() ? "" : " on " + count_text(std::ssize(hosts), "host");
}

// Returns the run's lines: its progress, its speed, its metrics, its problems.
ScreenLines head_lines(const LiveView& view, const LiveTextOptions& options) {
  ScreenLines lines;
  const auto line = [&] { return ScreenLine(options.width, options.color); };
  ScreenLine first = line();
  const char* const style = view.state == "done" ? "1;32" : view.ended ? "1;31" : "1;36";
  first.add(view.name, "1").add("  ").add(view.state, style);
  if (view.elapsed_s) first.add(view.ended ? " after " : " for ").add(seconds_text(*view.elapsed_s));
  first.add("   " + count_text(view.world_size, "rank") + host_count(view));
  lines.push_back(first.take());
  if (!view.cause.empty()) lines.push_back(line().add(view.cause, view.ended ? "31" : nullptr).take());

  ScreenLine progress = line();
  if (view.samples_per_s > 0) progress.add(format_rate(view.samples_per_s) + " samples/s", "1").add("   ");
  progress.add(progress_text(view));
  if (view.mfu) progress.add("   MFU " + format_percent(*view.mfu));
  if (view.total_batches && progress.room() >= 15) {
    const int room = std::min(40, progress.room() - 5);
    const double share = static_cast<double>(view.batch) / static_cast<double>(*view.total_batches);
    const auto done = static_cast<std::size_t>(std::clamp<std::int64_t>(to_count(share * room), 0, room));
    progress.add("   [").add(std::string(done, '#'), "36");
    progress.add(std::string(static_cast<std::size_t>(room) - done, '.')).add("]");
  }
  lines.push_back(progress.take());

  std::string metrics = metrics_text(view.training);
  if (!view.validation.values.empty()) {
    metrics += fmt::format("{}validation: {} (batch {})", metrics.empty() ? "" : "   ", metrics_text(view.validation),
                           count_text(view.validation.batch));
  }
  if (!metrics.empty()) lines.push_back(line().add(metrics).take());
  if (is_small(options)) return lines;
  for (const LiveCurve& curve : view.curves) {
    const int columns = std::min(kMostCurveColumns, options.width - kCurveName - kCurveRange);
    if (curve.points.size() < 2 || columns < kFewestCurveColumns) continue;
    ScreenLine drawn = line();
    drawn.left(word_of(curve.kind) + " " + curve.name, kCurveName - 1).add(" ");
    drawn.add(draw_curve(curve.points, columns), "36").add("  " + range_text(curve.points));
    lines.push_back(drawn.take());
  }
  if (const std::string saved = checkpoint_text(view); !saved.empty()) {
    ScreenLine checkpoint = line();
    checkpoint.add(saved);
    if (!view.checkpoint.trouble.empty()) checkpoint.add("   " + view.checkpoint.trouble, "33");
    lines.push_back(checkpoint.take());
  }
  if (const std::string recovered = recoveries_text(view); !recovered.empty()) {
    lines.push_back(line().add(recovered).take());
  }
  for (const std::string& note : view.notes) lines.push_back(line().add(note, "33").take());
  return lines;
}

}  // namespace

std::string_view name_of(Activity activity) {
  constexpr std::string_view kNames[] = {"loading", "computing", "exchange", "waiting", "optimizer", "other"};
  return activity < Activity::kCount ? kNames[static_cast<std::size_t>(activity)] : "";
}

std::vector<std::string> render_live(const LiveView& view, const LiveTextOptions& options) {
  ScreenLines lines = head_lines(view, options);
  ScreenLines hosts = host_lines(view, options);
  ScreenLines ranks = rank_lines(view, options, 0);
  // Number of empty lines before each part.
  const int gap = is_small(options) ? 0 : 1;
  const auto size = [&](const ScreenLines& part) { return part.empty() ? 0 : static_cast<int>(part.size()) + gap; };
  if (options.height > 0) {
    const int room = std::max(0, options.height - static_cast<int>(lines.size()));
    // Hosts get the lines that ranks leave, or half of the lines if both need more.
    const int for_hosts = std::min(size(hosts), std::max(room - size(ranks), room / 2));
    hosts.resize(for_hosts < kFewestListLines ? 0 : static_cast<std::size_t>(for_hosts - gap));
    if (room - size(hosts) < size(ranks)) {
      ranks = rank_lines(view, options, std::max(1, room - size(hosts) - gap));
    }
  }
  for (const ScreenLines& part : {ranks, hosts}) {
    if (!part.empty() && gap > 0) lines.emplace_back();
    lines.insert(lines.end(), part.begin(), part.end());
  }
  if (options.height > 0 && std::ssize(lines) > options.height) lines.resize(static_cast<std::size_t>(options.height));
  return lines;
}

}  // namespace dtrain::analysis
