#include "dtrain/run/summary_text.h"

#include <algorithm>

#include "dtrain/analysis/summary.h"
#include "dtrain/analysis/summary_text.h"
#include "environment.h"
#include "screen.h"

namespace dtrain::run {

std::string summary_text(const std::filesystem::path& run_dir, int fd) {
  analysis::TextOptions options;
  if (const auto width = terminal_width(fd)) {
    options.width = std::clamp(*width, 60, 160);
    options.color = !process_variables().contains("NO_COLOR");
  }
  return analysis::render_summary(analysis::summarize(run_dir), options);
}

}  // namespace dtrain::run
