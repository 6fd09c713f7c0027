// events.jsonl, plan.json and metrics.jsonl of a run, read as `dtrain runs`, `top` and `summary` read them.
#include <fstream>

#include "../harness/temporary_folder.h"
#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/printable.h"
#include "support.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, dtrain::fuzz::Input content) {
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

}  // namespace

void dtrain::fuzz::run_files(Input input) {
  static const TemporaryFolder folder{"/dev/shm"};
  const auto [events, rest] = split(input);
  const auto [plan, metrics] = split(rest);
  write(folder / "events.jsonl", events);
  write(folder / "plan.json", plan);
  write(folder / "metrics.jsonl", metrics);
  try {
    (void)to_line(analysis::to_json(analysis::read_listed_run(folder.path(), 1.8e9).line));
    const SystemClock clock;
    analysis::LiveRun live(folder.path(), clock);
    live.poll();
    (void)to_line(analysis::to_json(live.view()));
    const auto summary = analysis::summarize(folder.path());
    (void)to_line(analysis::to_json(summary));
    (void)printable(analysis::render_summary(summary, {}));
  } catch (const Error&) {
  }
}
