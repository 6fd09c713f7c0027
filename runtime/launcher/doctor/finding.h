// The result of a check of `dtrain doctor`. Plain values; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::run {

enum class Level { kOk, kWarning, kProblem };
std::string to_string(Level level);  // "ok", "warning", "problem"

struct Finding {
  std::string check;  // the subject of the check: "open files"
  Level level = Level::kOk;
  std::string text;
  std::string remedy;  // what to do; empty if it is ok
};

inline Finding ok(std::string check, std::string text) {
  return {std::move(check), Level::kOk, std::move(text), {}};
}
inline Finding warning(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Level::kWarning, std::move(text), std::move(remedy)};
}
inline Finding problem(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Level::kProblem, std::move(text), std::move(remedy)};
}

struct HostFindings {
  std::string host;
  std::vector<Finding> findings;
};

Json to_json(std::span<const Finding> findings);
std::vector<Finding> findings_of(const Json& json);  // Json::exception if it is malformed

Level worst(std::span<const HostFindings> hosts);
// Returns the worst level of one check on all hosts.
Level worst_of(std::span<const HostFindings> hosts, const std::string& check);
Json doctor_json(std::span<const HostFindings> hosts);
std::string render(std::span<const HostFindings> hosts);

}  // namespace dtrain::run
