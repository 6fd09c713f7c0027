// The exit codes of a command, for its --help.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "dtrain/base/process_interface.h"

namespace dtrain::cli {

// Returns a text of process_interface.h without the backticks around code.
inline std::string plain(std::string text) {
  std::erase(text, '`');
  return text;
}

// "Exit codes:" and an indented line for each.
inline std::string exit_codes_help(std::initializer_list<ExitCode> codes) {
  std::string help = "Exit codes:\n";
  for (const ExitCodeMeaning& one : kExitCodes) {
    if (std::find(codes.begin(), codes.end(), one.code) == codes.end()) continue;
    const std::string number = std::to_string(static_cast<int>(one.code));
    help += "  " + number + std::string(5 - number.size(), ' ') + plain(one.meaning) + "\n";
  }
  return help;
}

}  // namespace dtrain::cli
