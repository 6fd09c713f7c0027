#include "logged.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/profile/event_file.h"

namespace dtrain::board {
namespace {

using profile::LoggedEvent;
using std::chrono::steady_clock;

constexpr auto kForgottenAfter = std::chrono::minutes(1);
constexpr std::size_t kMostNames = 200, kMostSteps = 1000;
constexpr std::uint64_t kLargestPicture = std::uint64_t{16} << 20;

}  // namespace

std::shared_ptr<LoggedValues::Item> LoggedValues::item_of(const rank::RunFolder& folder) {
  const std::lock_guard lock(mutex_);
  const auto now = steady_clock::now();
  std::erase_if(items_, [&](const auto& known) {
    return known.first != folder.path && now - known.second->asked > kForgottenAfter;
  });
  auto& known = items_[folder.path];
  if (!known) known = std::make_shared<Item>();
  known->asked = now;
  return known;
}

void LoggedValues::add(const LoggedEvent& event, std::size_t file, Item& item) {
  if (event.kind == LoggedEvent::Kind::kRestart) {
    for (auto& [key, places] : item.values) {
      std::erase_if(places, [&](const Place& place) { return place.file < file && place.event.step >= event.step; });
    }
    std::erase_if(item.values, [](const auto& value) { return value.second.empty(); });
    return;
  }
  const Key key{event.tag, event.kind};
  if (!item.values.contains(key) && item.values.size() == kMostNames) return;
  std::vector<Place>& places = item.values[key];
  if (!places.empty() && places.back().event.step == event.step) places.pop_back();  // logged again: the last counts
  if (places.size() == kMostSteps) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < places.size(); i += 2) std::swap(places[kept++], places[i]);
    places.resize(kept);
  }
  places.push_back({file, event});
}

// Events of a file that cannot be read on end there, as for TensorBoard.
void LoggedValues::read(const rank::RunFolder& folder, Item& item) {
  const auto found = profile::event_files_of_run(folder.metrics_events());
  const bool are_others = found.size() < item.files.size() ||
                          !std::ranges::equal(item.files, std::span(found).first(item.files.size()), {},
                                              [](const profile::EventReader& file) { return file.path(); });
  if (are_others) item.files.clear(), item.values.clear();
  for (std::size_t i = item.files.size(); i < found.size(); ++i) item.files.emplace_back(found[i]);
  for (std::size_t i = 0; i < item.files.size(); ++i) {
    try {
      item.files[i].read([&](const LoggedEvent& event) { add(event, i, item); });
    } catch (const Error&) {
      continue;
    }
  }
}

const LoggedValues::Place& LoggedValues::find(const Item& item, const Key& key, std::int64_t step) {
  const auto found = item.values.find(key);
  if (found != item.values.end()) {
    const auto place = std::ranges::find(found->second, step, [](const Place& known) { return known.event.step; });
    if (place != found->second.end()) return *place;
  }
  throw ConfigError("the run has logged no '" + key.first + "' in batch " + std::to_string(step));
}

Json LoggedValues::list(const rank::RunFolder& folder) {
  const auto item = item_of(folder);
  const std::lock_guard lock(item->mutex);
  read(folder, *item);
  Json values = Json::array();
  for (const auto& [key, places] : item->values) {
    Json steps = Json::array();
    for (const Place& place : places) steps.push_back(place.event.step);
    const bool is_picture = key.second == LoggedEvent::Kind::kPicture;
    values.push_back(
        {{"name", key.first}, {"kind", is_picture ? "picture" : "histogram"}, {"steps", std::move(steps)}});
  }
  return {{"values", std::move(values)}};
}

std::string LoggedValues::picture(const rank::RunFolder& folder, const std::string& name, std::int64_t step) {
  const auto item = item_of(folder);
  const std::lock_guard lock(item->mutex);
  if (item->files.empty()) read(folder, *item);
  const Place& place = find(*item, {name, LoggedEvent::Kind::kPicture}, step);
  return profile::read_picture(item->files[place.file].path(), place.event, kLargestPicture);
}

Json LoggedValues::histogram(const rank::RunFolder& folder, const std::string& name, std::int64_t step) {
  const auto item = item_of(folder);
  const std::lock_guard lock(item->mutex);
  if (item->files.empty()) read(folder, *item);
  const Place& place = find(*item, {name, LoggedEvent::Kind::kHistogram}, step);
  const profile::HistogramBins bins = profile::read_histogram(item->files[place.file].path(), place.event);
  return {{"least", bins.least},
          {"greatest", bins.greatest},
          {"mean", bins.count > 0 ? Json(bins.sum / bins.count) : Json()},
          {"count", bins.count},
          {"limits", bins.limits},
          {"counts", bins.counts}};
}

}  // namespace dtrain::board
