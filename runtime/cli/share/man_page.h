// dtrain.1 in the man macros of troff. A pure function.
#pragma once

#include <string>

#include "share/command_facts.h"

namespace dtrain::cli {

std::string man_page(const CommandFacts& app, const std::string& version);

}  // namespace dtrain::cli
