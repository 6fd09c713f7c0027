// Runs dtrain's commands and keeps what they print.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "run_harness.h"

namespace dtrain {

struct Result {
  int code;
  std::string out;
  std::string err;
};

// In the folder of `run`, with further variables.
inline Result dtrain(const TestRun& run, std::vector<std::string> arguments,
                     std::map<std::string, std::string> environment = {}) {
  arguments.insert(arguments.begin(), bin("dtrain"));
  Command command(run.folder(), arguments, std::move(environment));
  const ExitStatus status = command.wait();
  EXPECT_EQ(status.signal, 0);
  return {status.code, command.out(), command.err()};
}

}  // namespace dtrain
