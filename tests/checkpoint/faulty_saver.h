// A saver behind fault_layer.cpp.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "checkpoint_harness.h"

namespace dtrain::checkpoints {

struct Fault {
  std::string kind;  // kill, eio, short, nospace; empty: none
  long at = 0;
  bool no_exchange = false;
  bool no_direct = false;
  std::string log;
};

// Only the process that is started here has the fault, none that replaces it.
inline std::unique_ptr<Saver> start_faulty(const SaverOptions& options, const SnapshotMemory& memory,
                                           const Fault& fault) {
  std::map<std::string, std::string> variables{{"LD_PRELOAD", DTRAIN_FAULT_LAYER},
                                               {"DTRAIN_FAULT_ROOT", options.storage.string()},
                                               {"ASAN_OPTIONS", "verify_asan_link_order=0"}};
  if (!fault.kind.empty()) {
    variables["DTRAIN_FAULT_KIND"] = fault.kind;
    variables["DTRAIN_FAULT_AT"] = std::to_string(fault.at);
  }
  if (fault.no_exchange) variables["DTRAIN_FAULT_NO_EXCHANGE"] = "1";
  if (fault.no_direct) variables["DTRAIN_FAULT_NO_DIRECT"] = "1";
  if (!fault.log.empty()) variables["DTRAIN_FAULT_LOG"] = fault.log;
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  auto saver = std::make_unique<Saver>(options, memory);
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return saver;
}

// How many cases a campaign has, and its first seed: SOAK_CASES and SOAK_SEED.
inline std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}
inline std::uint64_t soak_cases() {
  return number_from("SOAK_CASES", 50);
}
inline std::uint64_t soak_seed() {
  return number_from("SOAK_SEED", 1);
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  bool one_in(int count) { return between(1, count) == 1; }
  double fraction() { return std::uniform_real_distribution<double>()(random_); }

 private:
  std::mt19937_64 random_;
};

}  // namespace dtrain::checkpoints
