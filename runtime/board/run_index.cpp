#include "run_index.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/launcher/listed_run.h"

namespace dtrain::board {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr auto kPeriod = std::chrono::milliseconds(1000);
constexpr double kShareOfReading = 0.05;  // of the time: a long run is read again more seldom
constexpr std::size_t kSparkPoints = 40;
constexpr int kCacheVersion = 1;

std::int64_t time_of(const fs::path& path) {
  std::error_code code;
  const auto time = fs::last_write_time(path, code);
  return code ? 0 : time.time_since_epoch().count();
}

std::int64_t size_of(const fs::path& path) {
  std::error_code code;
  const auto size = fs::file_size(path, code);
  return code ? -1 : static_cast<std::int64_t>(size);
}

std::vector<std::int64_t> signature_of(const rank::RunFolder& folder) {
  return {size_of(folder.events()), time_of(folder.events()), size_of(folder.metrics()), time_of(folder.metrics()),
          time_of(folder.plan())};
}

// Returns the curve that a row shows: the metric of validations, or else the loss, or another metric, of the training.
Json spark_of(const analysis::ListedRun& run) {
  const analysis::Curve* curve = run.curves.find(analysis::CurveKind::kValidation, run.line.metric);
  if (!curve || curve->points.size() < 2) curve = run.curves.find(analysis::CurveKind::kTraining, "loss");
  const auto& all = run.curves.curves;
  if (!curve) {
    const auto first = std::ranges::find(all, analysis::CurveKind::kTraining, &analysis::Curve::kind);
    curve = first == all.end() ? nullptr : &*first;
  }
  Json values = Json::array();
  if (!curve) return values;
  const std::size_t count = curve->points.size(), stride = (count + kSparkPoints - 1) / kSparkPoints;
  for (std::size_t i = 0; i < count; i += stride) {
    const auto part = std::span(curve->points).subspan(i, std::min(stride, count - i));
    const double mean = analysis::together(part).mean;
    values.push_back(std::isfinite(mean) ? Json(mean) : Json());
  }
  return values;
}

}  // namespace

RunIndex::RunIndex(std::vector<fs::path> folders, fs::path cache, const Clock& clock)
    : folders_(std::move(folders)), cache_(std::move(cache)), clock_(clock) {
  load_cache();
  look_for_runs();
  thread_ = std::thread([this] { run(); });
}

RunIndex::~RunIndex() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
  save_cache();
}

std::uint64_t RunIndex::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

rank::RunFolder RunIndex::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) throw ConfigError("there is no run '" + id + "' in the board's folders");
  return found->second.folder;
}

std::optional<KnownLine> RunIndex::line(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.line.contains("name"))
    return std::nullopt;  // not read, or not readable
  return KnownLine{found->second.line, found->second.settings};
}

Json RunIndex::list() const {
  const std::lock_guard lock(mutex_);
  Json runs = Json::array(), folders = Json::array();
  for (const auto& folder : folders_) folders.push_back(folder.string());
  for (const auto& [id, entry] : entries_) {
    Json line = entry.line.is_null() ? Json{{"folder", entry.folder.path.string()}} : entry.line;
    line["id"] = id;
    line["number"] = or_null(entry.folder.number());
    runs.push_back(std::move(line));
  }
  const Json reading = unread_ > 0 ? Json{{"done", entries_.size() - unread_}, {"total", entries_.size()}} : Json();
  return {{"version", version_},
          {"folders", folders},
          {"reading", reading},
          {"runs", std::move(runs)},
          {"differs", differences()}};
}

Json RunIndex::differences() const {
  std::vector<analysis::Settings> settings;
  for (const auto& [id, entry] : entries_) settings.push_back(entry.settings);
  Json result = Json::array();
  for (const analysis::SettingDifference& difference : analysis::differences_of(settings)) {
    Json values = Json::array();
    for (const std::string& value : difference.values) values.push_back(analysis::shortened_setting(value));
    result.push_back({{"key", difference.key}, {"values", std::move(values)}});
  }
  return result;
}

void RunIndex::run() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kLowest);  // of this thread
  for (;;) {
    look_for_runs();
    bool changed = false;
    for (const std::string& id : ids()) {
      Signature now;
      bool due = false, lives = false;
      {
        const std::lock_guard lock(mutex_);
        if (ends_) return;
        const Entry& entry = entries_.at(id);
        now = signature_of(entry.folder);
        due = is_due(entry, now);
        lives = !entry.ended && !entry.line.is_null();
      }
      if (due) read(id, now);
      if (lives) follow(id);
      changed = changed || due;
    }
    if (!changed) save_cache();
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, kPeriod, [this] { return ends_; })) return;
  }
}

std::vector<std::string> RunIndex::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result;
  for (const auto& [id, entry] : entries_) {
    if (entry.line.is_null()) result.push_back(id);
  }
  std::ranges::reverse(result);  // the newest first
  for (const auto& [id, entry] : entries_) {
    if (!entry.line.is_null()) result.push_back(id);
  }
  return result;
}

// With several folders "2~0007-mnist" is a run of the second one.
void RunIndex::look_for_runs() {
  std::map<std::string, rank::RunFolder> found;
  for (std::size_t place = 0; place < folders_.size(); ++place) {
    std::error_code code;
    if (!fs::is_directory(folders_[place], code)) continue;  // it may come
    for (rank::RunFolder& folder : rank::runs_in(folders_[place])) {
      const std::string name = folder.path.filename().string();
      found.emplace(folders_.size() > 1 ? std::to_string(place + 1) + "~" + name : name, std::move(folder));
    }
  }
  const std::lock_guard lock(mutex_);
  const std::size_t gone = std::erase_if(entries_, [&](const auto& item) { return !found.contains(item.first); });
  bool is_new = gone > 0;
  for (auto& [id, folder] : found) {
    Entry& entry = entries_[id];
    if (entry.folder.path == folder.path) continue;
    entry.folder = std::move(folder);
    is_new = true;
  }
  unread_ = static_cast<std::size_t>(
      std::ranges::count_if(entries_, [](const auto& item) { return item.second.line.is_null(); }));
  if (is_new) ++version_;
}

bool RunIndex::is_due(const Entry& entry, const Signature& now) const {
  if (entry.line.is_null()) return true;
  const bool may_have_gone = !entry.ended && launcher::is_gone(entry.folder);
  return (entry.signature != now || may_have_gone) && steady_clock::now() >= entry.next;
}

// Called without the mutex, which the reading of a long run would hold too long. Only this thread removes entries.
void RunIndex::read(const std::string& id, const Signature& now) {
  rank::RunFolder folder = find(id);
  const auto began = steady_clock::now();
  Json line;
  analysis::Settings settings;
  bool ended = false;
  try {
    const analysis::ListedRun run = launcher::list_run(folder, clock_);
    line = analysis::to_json(run.line);
    line["spark"] = spark_of(run);
    settings = run.line.settings;
    ended = run.line.ended || run.line.state == "gone";
  } catch (const std::exception& error) {  // one of them must not hide the others
    line = {{"folder", folder.path.string()}, {"damage", describe(error)}};
    ended = true;
  }
  const auto took = steady_clock::now() - began;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(id);
  if (entry.line.is_null() && unread_ > 0) --unread_;
  entry.signature = now;
  entry.line = std::move(line);
  entry.settings = std::move(settings);
  entry.ended = ended;
  entry.read_s = std::chrono::duration<double>(took).count();
  entry.next = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                         std::chrono::duration<double>(entry.read_s / kShareOfReading));
  if (ended) entry.live.reset();
  saved_ = false;
  ++version_;
}

// Adds how far the run is, and its speed now.
void RunIndex::follow(const std::string& id) {
  std::unique_ptr<analysis::LiveRun> live;
  fs::path path;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_.at(id);
    if (entry.ended) return;
    live = std::move(entry.live);
    path = entry.folder.path;
  }
  if (!live) live = std::make_unique<analysis::LiveRun>(path, clock_);
  live->poll();
  const analysis::LiveView view = live->view();
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(id);
  const Json now = {{"state", view.state},
                    {"cause", view.cause.empty() ? Json() : Json(view.cause)},
                    {"batch", view.batch},
                    {"total_batches", or_null(view.total_batches)},
                    {"left_s", or_null(view.left_s)},
                    {"samples_per_s", view.samples_per_s},
                    {"mfu", or_null(view.mfu)}};
  if (entry.line.value("now", Json()) != now) ++version_;
  entry.line["now"] = now;
  entry.live = std::move(live);
}

void RunIndex::load_cache() {
  if (cache_.empty()) return;
  try {
    const Json cache = read_json(cache_);
    if (value_at<int>(cache, "version") != kCacheVersion) return;
    for (const Json& item : list_at(cache, "runs")) {
      Entry entry{.folder = {text_at(item, "folder")}};
      entry.signature = item.at("signature").get<Signature>();
      entry.line = item.at("line");
      for (const auto& [key, value] : item.at("settings").items()) entry.settings[key] = value.get<std::string>();
      entry.ended = item.at("ended").get<bool>();
      entries_.emplace(text_at(item, "id"), std::move(entry));
    }
  } catch (const std::exception&) {  // there is none yet, or it is damaged: everything is read
    entries_.clear();
  }
}

void RunIndex::save_cache() {
  Json runs = Json::array();
  {
    const std::lock_guard lock(mutex_);
    if (saved_ || cache_.empty()) return;
    saved_ = true;
    for (const auto& [id, entry] : entries_) {
      if (entry.line.is_null()) continue;
      Json line = entry.line;
      line.erase("now");
      runs.push_back({{"id", id},
                      {"folder", entry.folder.path.string()},
                      {"signature", entry.signature},
                      {"ended", entry.ended},
                      {"line", std::move(line)},
                      {"settings", entry.settings}});
    }
  }
  try {
    make_folder(cache_.parent_path());
    write_file_atomic(cache_, to_line({{"version", kCacheVersion}, {"runs", std::move(runs)}}), 0600);
  } catch (const SystemError&) {  // a full disk: everything is read the next time
  }
}

}  // namespace dtrain::board
