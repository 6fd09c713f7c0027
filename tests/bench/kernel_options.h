// The command line and the output of benchmarks of kernels: NAME [--json] [--quick] [--threads N].
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain::bench {

struct KernelOptions {
  bool json = false;
  int rounds = 31;  // odd, so that one of the values is the median
  int threads = 1;
};

// Ends the program with 2 where the command line is wrong.
inline KernelOptions kernel_options(int argc, char** argv, const char* name) {
  KernelOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      options.json = true;
    } else if (word == "--quick") {
      options.rounds = 9;
    } else if (word == "--threads" && i + 1 < argc) {
      options.threads = std::max(1, std::atoi(argv[++i]));
    } else {
      std::cerr << "usage: " << name << " [--json] [--quick] [--threads N]\n";
      std::exit(2);
    }
  }
  return options;
}

// One JSON line, or a line for each key.
inline void print_result(const Json& result, bool json) {
  if (json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, of] : result.items()) std::cout << name << " " << of << "\n";
  }
}

}  // namespace dtrain::bench
