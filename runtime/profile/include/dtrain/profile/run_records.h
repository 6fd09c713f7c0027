// Reads what a run's folder says of the run: events.jsonl, metrics.jsonl and plan.json. A stranger may have written
// them: what cannot be read is left out and named, and a member of a wrong type counts as missing. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::profile {

// What of a run's files cannot be read.
class Damage {
 public:
  // `text` names the file, and the line: `events.jsonl:12: "pid" is a text, not a whole number`.
  void add(std::string text);
  void add(const Damage& more);
  bool any() const { return count_ > 0; }
  // The first ones, and how many more there are.
  std::vector<std::string> lines() const;
  // Returns the first one, and how many more there are; empty: there are none.
  std::string text() const;

 private:
  std::vector<std::string> first_;
  std::int64_t count_ = 0;
};

// Files whose lines are objects that a run writes.
enum class RecordFile { kEvents, kMetrics };

// Returns the object of a line. Members of a wrong type are taken out and added to `damage`; `place` names the file and
// the line. Empty: it is no object, which is damage too, unless the text was cut off, as by a writer that was killed.
std::optional<Json> parse_record(RecordFile file, std::string_view line, const std::string& place, Damage& damage);
// As above, of the line with this number, from 1 on, of a run's file.
std::optional<Json> parse_record(RecordFile file, std::string_view line, std::int64_t number, Damage& damage);

// Hands each line of FOLDER/events.jsonl or metrics.jsonl to `use`, with its number. A file that is not there has none.
// FileLines::kPadding bytes behind a line may be read.
using LineUse = std::function<void(std::string_view line, std::int64_t number, Damage& damage)>;
Damage read_lines(const std::filesystem::path& folder, RecordFile file, const LineUse& use);

// Hands each object of FOLDER/events.jsonl or metrics.jsonl to `use`. A file that is not there has none.
Damage read_records(const std::filesystem::path& folder, RecordFile file, const std::function<void(Json&&)>& use);
inline Damage read_events(const std::filesystem::path& folder, const std::function<void(Json&&)>& use) {
  return read_records(folder, RecordFile::kEvents, use);
}

// Returns the plan of the run in the folder, an object. It is empty if there is none or if it cannot be read.
Json read_plan(const std::filesystem::path& folder, Damage& damage);

}  // namespace dtrain::profile
