// Reads environment variables that belong together. Only for code that reads a process's environment.
#pragma once

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/control.h"
#include "environment.h"

namespace dtrain::run {

inline const std::string* find(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

// One family of environment variables: their values as texts and numbers, with errors that name the variable.
class Family {
 public:
  Family(const Variables& variables, std::string first, std::string started_by)
      : variables_(variables), first_(std::move(first)), started_by_(std::move(started_by)) {}

  const std::string& text(const std::string& name) const {
    const std::string* value = find(variables_, name);
    if (!value || value->empty()) {
      throw ConfigError(
          "environment: " + name + " is not set, though " + first_ + " is",
          "set it, or unset " + first_ + " to run as a single rank (" + started_by_ + " normally sets both)");
    }
    return *value;
  }

  int number(const std::string& name, int low, int high) const {
    const std::string& value = text(name);
    const auto result = to_number<int>(value);
    if (!result || *result < low || *result > high) {
      throw ConfigError("environment: " + name + "=" + value + " is not a number from " + std::to_string(low) + " to " +
                        std::to_string(high));
    }
    return *result;
  }

  comm::World world(const std::string& rank, const std::string& size, const std::string& local_rank,
                    const std::string& local_size) const {
    comm::World world;
    world.size = number(size, 1, 1'000'000);
    world.rank = number(rank, 0, world.size - 1);
    world.local_size = number(local_size, 1, world.size);
    world.local_rank = number(local_rank, 0, world.local_size - 1);
    return world;
  }

 private:
  const Variables& variables_;
  std::string first_;
  std::string started_by_;
};

}  // namespace dtrain::run
