// The records of a run's JSON Lines files.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dtrain/base/json.h"

namespace dtrain {

// Every line must be whole: one that is not a JSON object, or that does not end, fails the test. None where there is no
// such file.
inline std::vector<Json> read_lines(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    EXPECT_FALSE(file.eof()) << path << " ends in the middle of a line";
    Json json = Json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << path << ": " << line;
    if (json.is_object()) lines.push_back(std::move(json));
  }
  return lines;
}

// Those whose `key` has this value: with_value(dump, "record", "step"), with_value(events, "event", "run_ended").
inline std::vector<Json> with_value(const std::vector<Json>& lines, const std::string& key, const std::string& value) {
  std::vector<Json> result;
  for (const Json& line : lines) {
    if (line.value(key, "") == value) result.push_back(line);
  }
  return result;
}
inline std::vector<Json> of_kind(const std::vector<Json>& dump, const std::string& kind) {
  return with_value(dump, "record", kind);
}
inline std::vector<Json> events_named(const std::vector<Json>& events, const std::string& name) {
  return with_value(events, "event", name);
}

}  // namespace dtrain
