// The tables that host_tables.cpp adds to those of the ranks.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "dtrain/analysis/export.h"

namespace dtrain::analysis {

// Types of columns, in SQL's words.
inline constexpr std::string_view kInteger = "INTEGER", kReal = "REAL", kText = "TEXT";

// Takes a row.
using Sink = std::function<void(const std::vector<Cell>&)>;

std::vector<Table> host_tables();  // what the agents saw
std::vector<Table> log_tables();   // metrics.jsonl and events.jsonl

}  // namespace dtrain::analysis
