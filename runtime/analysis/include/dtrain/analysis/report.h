// The report of a run: one HTML file that opens without a network, in light and dark, and prints. It holds the analysis
// as JSON, its headings, tables and texts as plain HTML, and scripts that draw charts and sort tables. However long the
// run and however many its ranks, it stays under 3 MB. Any thread may call.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_line.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

// In the run's folder.
inline constexpr const char* kReportFile = "report.html";

std::string render_report(const RunProfile& run, const Analysis& analysis);

// Reads the run in `folder`, analyses it and writes the report to `file`, whole or not at all. SystemError when there
// is no such folder, or when the file cannot be written.
void write_report(const std::filesystem::path& folder, const std::filesystem::path& file);

// Writes one page of several runs to `file`: their curves laid over each other, how each went, and what of their
// experiments differs. SystemError when the file cannot be written.
void write_comparison(std::span<const ListedRun> runs, const std::filesystem::path& file);

}  // namespace dtrain::analysis
