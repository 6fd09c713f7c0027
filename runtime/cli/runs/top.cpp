#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "commands.h"
#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"
#include "runs/top_screen.h"

namespace dtrain::cli {
namespace {

using Event = TopScreen::Event;

constexpr int kWidthOfFiles = 160;  // room for every column

struct TopArguments {
  std::string run;
  bool once = false, json = false;
  double interval_s = 1;
};

class Top {
 public:
  explicit Top(run::RunFolder folder) : folder_(std::move(folder)), run_(folder_.path, clock_) {}

  analysis::LiveView look() {
    const bool over = run::is_over(folder_);  // read first, so that what was written before is not missed
    run_.poll();
    analysis::LiveView view = run_.view();
    return over && !view.ended && view.quiet_s > kQuietS ? run_.view(true) : view;
  }

  void print(const analysis::LiveView& view) const {
    analysis::LiveTextOptions options;
    const auto text = run::text_options(STDOUT_FILENO);
    options.width = ::isatty(STDOUT_FILENO) != 0 ? text.width : kWidthOfFiles;
    options.color = text.color;
    for (const std::string& line : analysis::render_live(view, options)) std::printf("%s\n", line.c_str());
  }

  // Shows views until the run or the user ends it. Returns the exit code.
  ExitCode watch(Nanoseconds interval) {
    analysis::LiveView view = look();
    if (!view.ended) {
      TopScreen screen;
      while (!view.ended) {
        const Event event = show_until(screen, view, clock_.monotonic() + interval);
        if (event == Event::kQuit) return ExitCode::kDone;
        if (event == Event::kSignalled) return ExitCode::kInterrupted;
        view = look();
      }
    }
    print(view);
    return ExitCode::kDone;
  }

 private:
  // Shows a view until the next one is due; keys scroll in it.
  Event show_until(TopScreen& screen, const analysis::LiveView& view, Nanoseconds until) {
    for (;;) {
      const ScreenSize size = screen.size();
      const int page = std::max(1, size.height / 2);
      // A column stays empty: in the last one, terminals differ in what they do.
      screen.show(analysis::render_live(
          view, {.width = size.width - 1, .height = size.height, .first_rank = first_rank_, .color = color_}));
      const Event event = screen.wait(until, clock_);
      if (event == Event::kTime || event == Event::kQuit || event == Event::kSignalled) return event;
      if (event == Event::kUp) --first_rank_;
      if (event == Event::kDown) ++first_rank_;
      if (event == Event::kPageUp) first_rank_ -= page;
      if (event == Event::kPageDown) first_rank_ += page;
      if (event == Event::kTop) first_rank_ = 0;
      first_rank_ = std::clamp(first_rank_, 0, std::max(0, static_cast<int>(view.ranks.size()) - 1));
    }
  }

  run::RunFolder folder_;
  SystemClock clock_;
  analysis::LiveRun run_;
  const bool color_ = run::text_options(STDOUT_FILENO).color;
  int first_rank_ = 0;
};

ExitCode show_top(const TopArguments& arguments) {
  Top top(arguments.run.empty() ? run::newest_running() : run::find_run(arguments.run));
  if (arguments.once || !run::can_redraw(STDOUT_FILENO)) {
    const analysis::LiveView view = top.look();
    if (arguments.json) {
      std::printf("%s\n", to_line(analysis::to_json(view)).c_str());
    } else {
      top.print(view);
    }
    return ExitCode::kDone;
  }
  return top.watch(Nanoseconds(std::llround(arguments.interval_s * 1e9)));
}

}  // namespace

void add_top(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* command = app.add_subcommand("top", "Watch a run: its ranks, where their time goes, the load of its hosts");
  add_run(*command, arguments->run)->required(false);
  CLI::Option* once = command->add_flag("--once", arguments->once, "Print one view and end");
  add_json(*command, arguments->json)->needs(once);
  command->add_option("--interval", arguments->interval_s, "Seconds from one view to the next (default: 1)")
      ->check(CLI::Range(0.1, 60.0))
      ->type_name("SECONDS")
      ->excludes(once);
  command->footer(
      "Without RUN: the newest run under ./runs that has started and not ended, or else the newest that is queued.\n"
      "q or Ctrl-C ends top; arrows scroll a long list of ranks. When the run ends, top ends too and leaves its\n"
      "last view. If standard output is no terminal, or TERM is dumb, it prints one view. docs/top.md explains\n"
      "each number.");
  command->callback([arguments, exit_code] { *exit_code = show_top(*arguments); });
}

}  // namespace dtrain::cli
