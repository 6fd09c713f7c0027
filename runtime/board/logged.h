// The pictures and histograms that a run has logged, from its event files. Any thread. Runs that nobody asks for are
// forgotten.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/event_reader.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::board {

class LoggedValues {
 public:
  // {"values": [{name, kind: "picture" or "histogram", steps}]}, by name. Of many steps every second one is left out.
  Json list(const rank::RunFolder& folder);
  // Returns a PNG file. ConfigError: the run has not logged this. DataError: it is damaged, or too large to be shown.
  std::string picture(const rank::RunFolder& folder, const std::string& name, std::int64_t step);
  // {least, greatest, mean, count, limits, counts}; errors as above.
  Json histogram(const rank::RunFolder& folder, const std::string& name, std::int64_t step);

 private:
  using Key = std::pair<std::string, profile::LoggedEvent::Kind>;
  struct Place {
    std::size_t file = 0;
    profile::LoggedEvent event;
  };
  struct Item {
    std::mutex mutex;
    std::vector<profile::EventReader> files;
    std::map<Key, std::vector<Place>> values;
    std::chrono::steady_clock::time_point asked{};
  };
  std::shared_ptr<Item> item_of(const rank::RunFolder& folder);
  static void read(const rank::RunFolder& folder, Item& item);
  static void add(const profile::LoggedEvent& event, std::size_t file, Item& item);
  static const Place& find(const Item& item, const Key& key, std::int64_t step);

  std::mutex mutex_;
  std::map<std::filesystem::path, std::shared_ptr<Item>> items_;
};

}  // namespace dtrain::board
