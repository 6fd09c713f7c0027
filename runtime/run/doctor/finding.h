// What a check of `dtrain doctor` says. Plain values; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::run {

enum class Level { kOk, kWarning, kProblem };
std::string to_string(Level level);  // "ok", "warning", "problem"

struct Finding {
  std::string check;  // what was looked at: "open files"
  Level level = Level::kOk;
  std::string text;
  std::string remedy;  // what to do; empty when it is ok
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

// Of one host.
struct HostFindings {
  std::string host;
  std::vector<Finding> findings;
};

Json to_json(std::span<const Finding> findings);
std::vector<Finding> findings_of(const Json& json);  // Json::exception where it is something else

Level worst(std::span<const HostFindings> hosts);
// Of one check alone.
Level worst_of(std::span<const HostFindings> hosts, const std::string& check);
Json doctor_json(std::span<const HostFindings> hosts);
std::string render(std::span<const HostFindings> hosts);

}  // namespace dtrain::run
