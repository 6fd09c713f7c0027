// One mapping of the file, read key by key: each read checks type and range, reports errors to the collector and then
// returns the default, so that reading goes on to the next error. Private to config, one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "document/collector.h"
#include "document/value.h"
#include "dtrain/base/json.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

class Section {
 public:
  // `value`: nullptr or null is an empty section. `at`: where a missing key is reported.
  Section(const Value* value, std::string path, Location at, Collector& collector);

  // Returns the value of a key, or nullptr; from now on the key is known.
  const Value* find(const std::string& key);
  // Reports that a required key is missing, naming a near miss; silent if the section itself was wrong.
  void report_missing(const std::string& key, const std::string& what_it_is);
  void report(const Value& value, const std::string& key, const std::string& message);
  // Returns the value at a path such as "data.format"; nullptr: the file does not have that key.
  const Value* find_at(const std::string& path);
  // Reports the key at the path if it is given.
  void refuse(const std::string& path, const std::string& message);

  Section section(const std::string& key);
  bool boolean(const std::string& key, bool fallback);
  std::int64_t integer(const std::string& key, std::int64_t fallback, std::int64_t min, std::int64_t max);
  // Reads a value that was found already; `key` is for the message.
  std::int64_t parse_integer(const Value& value, const std::string& key, std::int64_t fallback, std::int64_t min,
                             std::int64_t max);
  std::optional<std::int64_t> optional_integer(const std::string& key, std::int64_t min, std::int64_t max);
  double number(const std::string& key, double fallback, double min, double max);
  std::string text(const std::string& key, const std::string& fallback);
  std::vector<std::string> texts(const std::string& key);
  std::string choice(const std::string& key, const std::string& fallback, std::span<const std::string> choices);
  Length length(const std::string& key, Length fallback, std::int64_t min);
  Json free_map(const std::string& key);

  // Refuses a key whose function does not exist yet, or not for this value.
  void refuse_yet(const std::string& key, const std::string& instead);

  // Reports the keys that were not read.
  void finish();

  std::string path_of(const std::string& key) const { return join_path(path_, key); }
  Collector& collector() { return collector_; }
  // Returns the folder of the file: the file's relative paths start there.
  std::filesystem::path folder() const { return collector_.folder(); }

 private:
  const Value* value_;  // a map, or nullptr
  std::string path_;
  Location at_;
  Collector& collector_;
  bool broken_ = false;  // not a map: reported already
  std::vector<std::string> known_;
};

// "must be WHAT, not VALUE"
std::string must_be(const std::string& what, const Value& value);

// "a, b or c"
std::string list_of_choices(std::span<const std::string> choices);

// Returns a value of a free map as JSON; a value that JSON cannot hold is reported under `path`.
Json to_json(const Value& value, const std::string& path, Collector& collector);

}  // namespace dtrain::config
