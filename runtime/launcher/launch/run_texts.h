// Texts about a run besides the output of its ranks: where its time has gone so far, its report and the next steps.
// dtrain/launcher/summary_text.h has its summary. Any thread, but first_look() one at a time.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/rank/launcher_duties.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::launcher {

// Returns the next steps with a run that is over: three lines below its summary. `recorded`: the run has a profile,
// which reports and analyses read.
std::string next_steps(const rank::RunFolder& folder, bool recorded);

// "so far      12,345 samples/s; computing 71%, exchange 15%, waiting 9%, loading 5%": means over the ranks, the
// largest share first. Empty if no rank has recorded a batch.
std::string first_look_text(const analysis::LiveView& view);

// Returns that text for the run's folder as it is now, with the command that shows it continuously. Empty if the dumps
// hold no batch, for example while they are on other hosts. Never throws.
std::string first_look(const rank::RunFolder& folder, const Clock& clock) noexcept;

// Writes the report. Never throws: a run does not fail because of its report. A report that would take more than a
// second or two is left to 'dtrain report'.
rank::EndReport end_report(const std::filesystem::path& run_dir) noexcept;

}  // namespace dtrain::launcher
