#include "dtrain/run/summary_text.h"

#include <algorithm>

#include <unistd.h>

#include "dtrain/analysis/summary.h"
#include "environment.h"
#include "folder/screen.h"

namespace dtrain::run {

bool can_redraw(int fd) {
  const Variables variables = process_variables();
  const auto term = variables.find("TERM");
  return ::isatty(fd) != 0 && term != variables.end() && !term->second.empty() && term->second != "dumb";
}

analysis::TextOptions text_options(int fd) {
  analysis::TextOptions options;
  if (const auto width = terminal_width(fd)) {
    options.width = std::clamp(*width, 60, 160);
    options.color = can_redraw(fd) && !process_variables().contains("NO_COLOR");
  }
  return options;
}

std::string summary_text(const std::filesystem::path& run_dir, int fd) {
  return analysis::render_summary(analysis::summarize(run_dir), text_options(fd));
}

}  // namespace dtrain::run
