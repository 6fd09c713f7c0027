#include "runs/top_screen.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::cli {
namespace {

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

}  // namespace

TopScreen::TopScreen() {
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

TopScreen::~TopScreen() {
  leave();
  for (const int signal : kCrashes) ::signal(signal, SIG_DFL);
  while (next_signal() != 0) continue;  // they were for the screen
  ::pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
}

void TopScreen::enter() {
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

ScreenSize TopScreen::size() const {
  winsize now{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0 || now.ws_col == 0 || now.ws_row == 0) return {};
  return {now.ws_col, now.ws_row};
}

// One write shows the view, so that no half-drawn view is seen.
void TopScreen::show(const std::vector<std::string>& lines) {
  std::string text(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    text += kEraseLine;
    text += lines[i];
  }
  if (std::ssize(lines) < size().height) {
    text += "\r\n";
    text += kEraseBelow;
  }
  write_all(STDOUT_FILENO, text);
}

TopScreen::Event TopScreen::wait(Nanoseconds until, const Clock& clock) {
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

int TopScreen::next_signal() {
  signalfd_siginfo info{};
  return ::read(signal_fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

TopScreen::Event TopScreen::read_signal() {
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

void TopScreen::suspend() {
  leave();
  ::raise(SIGSTOP);
  enter();
}

TopScreen::Event TopScreen::read_keys() {
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

}  // namespace dtrain::cli
