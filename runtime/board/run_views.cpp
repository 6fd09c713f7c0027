#include "run_views.h"

#include <algorithm>
#include <cmath>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/analysis/run_history.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/launcher/listed_run.h"
#include "dtrain/profile/run_records.h"
#include "own_program.h"

namespace dtrain::board {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::int64_t kLogPart = std::int64_t{256} << 10;
constexpr std::int64_t kLogEnd = std::int64_t{64} << 10;
constexpr auto kForgotten = std::chrono::minutes(1);
constexpr int kShareOfMaking = 20;  // a text that took 1 s to make is made again after 20

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json to_json(const analysis::Curve& curve) {
  Json batches = Json::array(), seconds = Json::array(), means = Json::array(), lows = Json::array(),
       highs = Json::array(), lasts = Json::array();
  bool varies = false;
  for (const analysis::CurvePoint& point : curve.points) {
    batches.push_back(point.batch);
    seconds.push_back(point.seconds);
    means.push_back(number(point.mean));
    lows.push_back(number(point.low));
    highs.push_back(number(point.high));
    lasts.push_back(number_or_text(point.last));
    varies = varies || point.finite > 1;
  }
  Json json = {{"kind", analysis::word_of(curve.kind)}, {"name", curve.name},       {"batches", std::move(batches)},
               {"seconds", std::move(seconds)},         {"mean", std::move(means)}, {"last", std::move(lasts)},
               {"non_finite", curve.non_finite()}};
  if (varies) json["low"] = std::move(lows), json["high"] = std::move(highs);
  return json;
}

Json logs_of(const rank::RunFolder& folder) {
  std::vector<int> ranks;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder.logs(), code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".log")) continue;
    if (const auto rank = to_number<int>(name.substr(5, name.size() - 9))) ranks.push_back(*rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

// Returns a number that changes with the sizes and times of the files.
std::int64_t state_of(const std::vector<fs::path>& files) {
  std::int64_t sum = 0;
  std::error_code code;
  for (const fs::path& path : files) {
    const auto size = fs::file_size(path, code);
    if (!code) sum += static_cast<std::int64_t>(size);
    const auto time = fs::last_write_time(path, code);
    if (!code) sum += time.time_since_epoch().count();
  }
  return sum;
}

std::int64_t state_of_records(const rank::RunFolder& folder) {
  std::vector<fs::path> files{folder.events()};
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder.profile(), code)) files.push_back(entry.path());
  return state_of(files);
}

Json curves_of_run(const rank::RunFolder& folder, const Clock& clock) {
  const analysis::ListedRun listed = launcher::list_run(folder, clock);
  Json curves = Json::array(), restarts = Json::array();
  for (const analysis::Curve& curve : listed.curves.curves) curves.push_back(to_json(curve));
  for (const analysis::Restart& restart : listed.curves.restarts) {
    restarts.push_back({{"attempt", restart.attempt}, {"batch", restart.batch}, {"seconds", restart.seconds}});
  }
  return {{"curves", std::move(curves)},
          {"restarts", std::move(restarts)},
          {"metric", listed.line.metric.empty() ? Json() : Json(listed.line.metric)},
          {"smaller_is_better", listed.line.smaller_is_better}};
}

KnownLine line_of(const rank::RunFolder& folder, const Clock& clock) {
  const analysis::RunLine line = launcher::list_run(folder, clock).line;
  return {analysis::to_json(line), line.settings};
}

}  // namespace

Json describe_run(const rank::RunFolder& folder, const std::optional<KnownLine>& known, const Clock& clock) {
  profile::Damage damage;
  Json plan = profile::read_plan(folder.path, damage);
  config::hide_variables(plan);
  const KnownLine line = known ? *known : line_of(folder, clock);
  const analysis::RunHistory history = analysis::read_history(folder.path);
  Json attempts = Json::array(), checkpoints = Json::array(), troubles = Json::array();
  for (const auto& attempt : history.attempts) {
    attempts.push_back(analysis::to_json(attempt));
    attempts.back()["text"] = analysis::end_text(attempt);
  }
  for (const auto& checkpoint : history.checkpoints) checkpoints.push_back(analysis::to_json(checkpoint));
  for (const auto& trouble : history.troubles) troubles.push_back(analysis::text_of(trouble));
  std::error_code code;
  Json settings = Json::object();
  for (const auto& [key, value] : line.settings) settings[key] = value;
  return {{"line", line.line},
          {"reference", rank::reference_of(folder)},
          {"command", rank::own_command()},
          {"settings", std::move(settings)},
          {"plan", std::move(plan)},
          {"attempts", std::move(attempts)},
          {"checkpoints", std::move(checkpoints)},
          {"troubles", std::move(troubles)},
          {"logs", logs_of(folder)},
          {"launcher_log", fs::exists(folder.launcher_log(), code)},
          {"report", fs::exists(folder.path / "report.html", code)},
          {"damage", damage.text().empty() ? Json() : Json(damage.text())}};
}

Json log_lines_of(const rank::RunFolder& folder, int rank, std::int64_t from) {
  const fs::path path = rank < 0 ? folder.launcher_log() : folder.log(rank);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw ConfigError("there is no log " + path.string());
  const std::int64_t size = ::lseek(fd.get(), 0, SEEK_END);
  const bool at_end = from < 0;
  const std::int64_t begin = at_end ? std::max<std::int64_t>(0, size - kLogEnd) : std::min(from, size);
  std::string text(static_cast<std::size_t>(std::min(size - begin, kLogPart)), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), begin);
  if (count < 0) throw SystemError("cannot read " + path.string(), errno);
  text.resize(static_cast<std::size_t>(count));
  // Whole lines, unless one is longer than a part.
  std::size_t first = 0;
  if (at_end && begin > 0) first = std::min(text.find('\n'), text.size() - 1) + 1;
  std::size_t last = text.rfind('\n');
  last = last == std::string::npos || last < first ? (text.size() == kLogPart ? text.size() : first) : last + 1;
  Json lines = Json::array();
  std::string_view rest = std::string_view(text).substr(first, last - first);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    lines.push_back(printable(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {{"lines", std::move(lines)}, {"next", begin + static_cast<std::int64_t>(last)}, {"size", size}};
}

Json LiveViews::view(const rank::RunFolder& folder) {
  std::shared_ptr<Item> item;
  {
    const std::lock_guard lock(mutex_);
    const auto now = steady_clock::now();
    std::erase_if(items_, [&](const auto& known) {
      return known.first != folder.path && now - known.second->asked > kForgotten;
    });
    auto& known = items_[folder.path];
    if (!known) known = std::make_shared<Item>();
    known->asked = now;
    item = known;
  }
  const std::lock_guard lock(item->mutex);
  if (!item->run) item->run = std::make_unique<analysis::LiveRun>(folder.path, clock_);
  const bool gone = launcher::is_gone(folder);  // looked at first, so that what was written before is not missed
  item->run->poll();
  Json view = analysis::to_json(item->run->view(gone));
  view.erase("curves");  // the page has them from curves_of_run()
  return view;
}

std::string KeptTexts::get(const fs::path& run, std::int64_t signature, const std::function<std::string()>& make) {
  const auto known = [&]() -> std::optional<std::string> {
    const std::lock_guard lock(mutex_);
    const auto found = items_.find(run);
    if (found == items_.end()) return std::nullopt;
    found->second.asked = steady_clock::now();
    const bool holds = found->second.signature == signature || found->second.asked < found->second.next;
    return holds ? std::optional(found->second.text) : std::nullopt;
  };
  if (auto text = known()) return *text;
  const std::lock_guard one(making_);
  if (auto text = known()) return *text;  // another thread has asked for the same
  const auto began = steady_clock::now();
  std::string text = make();
  const auto ended = steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (items_.size() >= most_ && !items_.contains(run)) {
    items_.erase(std::ranges::min_element(items_, {}, [](const auto& item) { return item.second.asked; }));
  }
  items_[run] = {text, signature, ended + kShareOfMaking * (ended - began), ended};
  return text;
}

std::string Analyses::analysis(const rank::RunFolder& folder) {
  return kept_.get(folder.path, state_of_records(folder), [&] {
    const Called called = call_dtrain({"analyze", "--json", folder.path.string()}, {.in_background = true});
    return called.success ? called.output : to_line({{"error", "dtrain analyze: " + called.errors}});
  });
}

std::string CurveViews::curves(const rank::RunFolder& folder) {
  return kept_.get(folder.path, state_of({folder.events(), folder.metrics()}),
                   [&] { return to_line(curves_of_run(folder, clock_)); });
}

}  // namespace dtrain::board
