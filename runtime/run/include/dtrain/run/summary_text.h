// What is said of a run, laid out for the terminal (or the pipe) it will be written to. Any thread.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/analysis/summary_text.h"

namespace dtrain::run {

// A terminal that can do more than print line after line, as far as TERM says.
bool can_redraw(int fd);

// Coloured and as wide as the terminal where `fd` is one; plain otherwise.
analysis::TextOptions text_options(int fd);

std::string summary_text(const std::filesystem::path& run_dir, int fd);

}  // namespace dtrain::run
