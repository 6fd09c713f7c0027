#include "doctor/finding.h"

#include <algorithm>
#include <cstdio>

#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

constexpr const char* kUnderText = "                            -> ";

Level level_of(const std::string& word) {
  if (word == to_string(Level::kProblem)) return Level::kProblem;
  return word == to_string(Level::kWarning) ? Level::kWarning : Level::kOk;
}

int count(std::span<const HostFindings> hosts, Level level) {
  int result = 0;
  for (const HostFindings& host : hosts) {
    result += static_cast<int>(std::count_if(host.findings.begin(), host.findings.end(),
                                             [&](const Finding& one) { return one.level == level; }));
  }
  return result;
}

}  // namespace

std::string to_string(Level level) {
  switch (level) {
    case Level::kProblem:
      return "problem";
    case Level::kWarning:
      return "warning";
    case Level::kOk:
      break;
  }
  return "ok";
}

Json to_json(std::span<const Finding> findings) {
  Json result = Json::array();
  for (const Finding& one : findings) {
    result.push_back(
        Json{{"check", one.check}, {"level", to_string(one.level)}, {"text", one.text}, {"remedy", one.remedy}});
  }
  return result;
}

std::vector<Finding> findings_of(const Json& json) {
  std::vector<Finding> result;
  for (const Json& one : json) {
    result.push_back({one.at("check").get<std::string>(), level_of(one.at("level").get<std::string>()),
                      one.at("text").get<std::string>(), one.at("remedy").get<std::string>()});
  }
  return result;
}

Level worst(std::span<const HostFindings> hosts) {
  if (count(hosts, Level::kProblem) > 0) return Level::kProblem;
  return count(hosts, Level::kWarning) > 0 ? Level::kWarning : Level::kOk;
}

Level worst_of(std::span<const HostFindings> hosts, const std::string& check) {
  Level result = Level::kOk;
  for (const HostFindings& host : hosts) {
    for (const Finding& one : host.findings) {
      if (one.check == check) result = std::max(result, one.level);
    }
  }
  return result;
}

Json doctor_json(std::span<const HostFindings> hosts) {
  Json list = Json::array();
  for (const HostFindings& host : hosts) {
    list.push_back(Json{{"host", host.host}, {"findings", to_json(host.findings)}});
  }
  return {{"worst", to_string(worst(hosts))}, {"hosts", std::move(list)}};
}

std::string render(std::span<const HostFindings> hosts) {
  std::string text;
  for (const HostFindings& host : hosts) {
    text += host.host + "\n";
    for (const Finding& one : host.findings) {
      char start[64];
      std::snprintf(start, sizeof start, "  %-8s  %-14s  ", to_string(one.level).c_str(), one.check.c_str());
      text += start + one.text + "\n";
      if (!one.remedy.empty()) text += kUnderText + one.remedy + "\n";
    }
  }
  const int problems = count(hosts, Level::kProblem);
  const int warnings = count(hosts, Level::kWarning);
  if (problems + warnings == 0) return text + "all is well\n";
  return text + count_of(problems, "problem") + ", " + count_of(warnings, "warning") + "\n";
}

}  // namespace dtrain::run
