// The report of a run: one HTML file that needs no network, has a light and a dark theme, and can be printed. It holds
// the analysis as JSON; headings, tables and texts as plain HTML; and scripts that draw charts and sort tables. It is
// smaller than 3 MB for any length of the run and any number of ranks. Any thread may call.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

// The name of the report in the run's folder.
inline constexpr const char* kReportFile = "report.html";

std::string render_report(const RunProfile& run, const Analysis& analysis);

// Reads the run in `folder`, analyses it and writes the report to `file`, atomically. SystemError if there is no such
// folder, or if the file cannot be written.
void write_report(const std::filesystem::path& folder, const std::filesystem::path& file);

// Writes one page of several runs to `file`: their curves in common charts, how each run went, and how their
// experiments differ. SystemError if the file cannot be written.
void write_comparison(std::span<const ListedRun> runs, const std::filesystem::path& file);

}  // namespace dtrain::analysis
