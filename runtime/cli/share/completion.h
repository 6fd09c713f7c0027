// The completion scripts of the shells. Pure functions.
#pragma once

#include <string>

#include "share/command_facts.h"

namespace dtrain::cli {

std::string bash_completion(const CommandFacts& app);
std::string zsh_completion(const CommandFacts& app);

}  // namespace dtrain::cli
