#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/ioctl.h>
#include <sys/signalfd.h>

#include "commands.h"
#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/printable.h"
#include "dtrain/launcher/listed_run.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

struct ScreenSize {
  int width = 80, height = 24;
};

// The terminal while `dtrain top` redraws it: the alternate screen, keys without Enter and without echo, no cursor. All
// of that is restored however the program ends: the end of the object, an exception, a signal, a crash.
//
// This is our own code and no curses: a view is lines of text in any case (--once prints them, tests read them), and to
// show them takes seven sequences that all terminals support whose TERM is not dumb. Curses would add a library to the
// program's start, a second copy of the screen, a state of the whole process, and handlers for the very signals that
// must be ours.
//

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";  // alternate screen, no cursor, no wrapping
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kEraseLine = "\x1b[2K";
constexpr std::string_view kEraseBelow = "\x1b[J";
constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// The state that a handler of a crash needs: a handler gets no argument that could carry it.
struct Before {
  termios keys{};
  bool has_keys = false;
  std::atomic<bool> entered{false};
};

Before before;

// Restores the terminal. Safe in a handler.
void leave() {
  if (!before.entered.exchange(false)) return;
  write_all(STDOUT_FILENO, kLeave);
  if (before.has_keys) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before.keys);
}

void crashed(int signal) {
  leave();
  ::raise(signal);  // SA_RESETHAND: with its own effect this time
}

// One object a process, on the thread that made it, before other threads exist.
class TopScreen {
 public:
  // Requires launcher::can_redraw(STDOUT_FILENO). SystemError.
  TopScreen() {
    ::sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}) ::sigaddset(&signals_, signal);
    signal_fd_.reset(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signal_fd_) throw SystemError("cannot make a signalfd", errno);
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    keys_ = ::isatty(STDIN_FILENO) != 0 && ::tcgetattr(STDIN_FILENO, &before.keys) == 0;
    before.has_keys = keys_;
    struct sigaction action {};
    action.sa_handler = crashed;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    for (const int signal : kCrashes) ::sigaction(signal, &action, nullptr);
    enter();
  }
  ~TopScreen() {
    leave();
    for (const int signal : kCrashes) ::signal(signal, SIG_DFL);
    while (next_signal() != 0) continue;  // they were for the screen
    ::pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  }
  TopScreen& operator=(TopScreen&&) = delete;

  ScreenSize size() const {
    winsize now{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0 || now.ws_col == 0 || now.ws_row == 0) return {};
    return {now.ws_col, now.ws_row};
  }
  // Shows the lines in the place of those shown before.
  // One write shows the view, so that no half-drawn view is seen.
  void show(const std::vector<std::string>& lines) {
    std::string text(kHome);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) text += "\r\n";
      text += kEraseLine;
      text += printable(lines[i], Styles::kKept);
    }
    if (std::ssize(lines) < size().height) {
      text += "\r\n";
      text += kEraseBelow;
    }
    write_all(STDOUT_FILENO, text);
  }

  enum class Event { kTime, kQuit, kSignalled, kUp, kDown, kPageUp, kPageDown, kTop, kResized };
  // Returns the next event. kTime: none until `until` of the monotonic clock. kSignalled: a process asks for the end.
  Event wait(Nanoseconds until, const Clock& clock) {
    for (;;) {
      if (const Event event = read_signal(); event != Event::kTime) return event;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock.monotonic()).count();
      if (left <= 0) return Event::kTime;
      std::array<pollfd, 2> sources = {{{signal_fd_.get(), POLLIN, 0}, {keys_ ? STDIN_FILENO : -1, POLLIN, 0}}};
      const int ready = ::poll(sources.data(), sources.size(), static_cast<int>(std::min<std::int64_t>(left, 60'000)));
      if (ready <= 0 || sources[1].revents == 0) continue;
      if (const Event event = read_keys(); event != Event::kTime) return event;
    }
  }

 private:
  void enter() {
    before.entered = true;
    if (keys_) {
      termios raw = before.keys;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 0;
      raw.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    write_all(STDOUT_FILENO, kEnter);
  }
  Event read_keys() {
    std::array<char, 64> bytes{};
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count <= 0) {  // the terminal is gone, as SIGHUP also reports
      keys_ = false;
      return Event::kTime;
    }
    static constexpr std::pair<std::string_view, Event> kKeys[] = {
        {"\x1b[A", Event::kUp},  {"\x1b[B", Event::kDown}, {"\x1b[5~", Event::kPageUp}, {"\x1b[6~", Event::kPageDown},
        {"\x1b[H", Event::kTop}, {"\x1bOA", Event::kUp},   {"\x1bOB", Event::kDown},    {"k", Event::kUp},
        {"j", Event::kDown},     {"g", Event::kTop},       {" ", Event::kPageDown},     {"q", Event::kQuit},
        {"Q", Event::kQuit},
    };
    // Of several keys that came at once the first one counts; a key that quits counts before all others.
    const std::string_view typed(bytes.data(), static_cast<std::size_t>(count));
    if (typed.find_first_of("qQ") != std::string_view::npos) return Event::kQuit;
    for (const auto& [key, event] : kKeys) {
      if (typed.starts_with(key)) return event;
    }
    return Event::kTime;
  }
  Event read_signal() {
    switch (next_signal()) {
      case 0:
        return Event::kTime;
      case SIGINT:
      case SIGQUIT:
        return Event::kQuit;
      case SIGTSTP:
        suspend();
        return Event::kResized;
      case SIGWINCH:
        return Event::kResized;
      default:
        return Event::kSignalled;
    }
  }
  // 0: none
  int next_signal() {
    signalfd_siginfo info{};
    return ::read(signal_fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }
  void suspend() {
    leave();
    ::raise(SIGSTOP);
    enter();
  }

  sigset_t signals_{};
  UniqueFd signal_fd_;
  bool keys_ = false;  // standard input is the terminal
};

using Event = TopScreen::Event;

constexpr int kWidthOfFiles = 160;  // room for every column

struct TopArguments {
  std::string run;
  bool once = false, json = false;
  double interval_s = 1;
};

class Top {
 public:
  explicit Top(rank::RunFolder folder) : folder_(std::move(folder)), run_(folder_.path, clock_) {}

  analysis::LiveView look() {
    const bool over = rank::is_over(folder_);  // read first, so that what was written before is not missed
    run_.poll();
    analysis::LiveView view = run_.view();
    return over && !view.ended && view.quiet_s > launcher::kQuietS ? run_.view(true) : view;
  }

  void print(const analysis::LiveView& view) const {
    analysis::LiveTextOptions options;
    const auto text = launcher::text_options(STDOUT_FILENO);
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

  rank::RunFolder folder_;
  SystemClock clock_;
  analysis::LiveRun run_;
  const bool color_ = launcher::text_options(STDOUT_FILENO).color;
  int first_rank_ = 0;
};

ExitCode show_top(const TopArguments& arguments) {
  Top top(arguments.run.empty() ? rank::newest_running() : rank::find_run(arguments.run));
  if (arguments.once || !launcher::can_redraw(STDOUT_FILENO)) {
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
