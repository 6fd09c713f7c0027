// The tables that host_tables.cpp adds to those of the ranks.
#pragma once

#include <vector>

#include "dtrain/analysis/export.h"

namespace dtrain::analysis {

std::vector<Table> host_tables();  // what the agents saw
std::vector<Table> log_tables();   // metrics.jsonl and events.jsonl

}  // namespace dtrain::analysis
