// The report that every run leaves in its folder when it is over. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace dtrain::run {

struct EndReport {
  std::string text;     // for the screen: where the report is, or how to get it; empty if there is nothing to report on
  std::string warning;  // for standard error: why there is no report
};

// Writes the report. Never throws: a run does not fail because of its report. A report that would take more than a
// second or two is left to 'dtrain report'.
EndReport end_report(const std::filesystem::path& run_dir) noexcept;

}  // namespace dtrain::run
