// Texts about a run, in the layout for the terminal or pipe that they are written to. Any thread.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/analysis/summary.h"

namespace dtrain::launcher {

// True if `fd` is a terminal that can redraw lines, according to TERM.
bool can_redraw(int fd);

// Returns options for text that is coloured and as wide as the terminal if `fd` is one; else plain.
analysis::TextOptions text_options(int fd);

std::string summary_text(const std::filesystem::path& run_dir, int fd);

}  // namespace dtrain::launcher
