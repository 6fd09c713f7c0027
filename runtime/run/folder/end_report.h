// The report that every run leaves in its folder when it is over. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace dtrain::run {

struct EndReport {
  std::string text;  // a line for the screen: where it is, or how to get it; empty where there is nothing to report on
  std::string warning;  // a line for standard error: why there is none
};

// Writes the report. Throws nothing: one that cannot be written is no reason for a run to fail; and one that would take
// more than a second or two is left to 'dtrain report'.
EndReport end_report(const std::filesystem::path& run_dir) noexcept;

}  // namespace dtrain::run
