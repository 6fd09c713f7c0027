// Many launchers at once that queue for slots, hold them with real processes, and are killed with SIGKILL at random: no
// slot is given twice, none is lost, no task is lost, and none is overtaken.
//
//   queue_stress [--seconds 10] [--launchers 50] [--seed 1] [--real] [--json]
//
// A launcher is this program itself: it does with the ledger what `dtrain launch` does (submit, try_claim, orders,
// add_process, set_state, end: the same library, the same file), and its ranks only hold their slots and sleep. That is
// far less work than a run, so hundreds of launchers get their turn in a minute. With --real it is `dtrain launch`
// itself, with an experiment file, a cluster file, ranks that train (without torch) and all that a run writes: fewer
// have their turn, and fewer are killed. Ends with 1, and a line for each, when something is wrong.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <thread>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "stress.h"

namespace {

using namespace dtrain;
using namespace dtrain::scheduler;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr auto kHangs = 120s;  // against hangs alone
// Of the launchers one in so many is killed every round of 50 ms. Real ones wait longer for their turn.
constexpr int kOneIn = 100;
constexpr int kOneInReal = 600;

struct Options {
  int seconds = 10;
  std::size_t launchers = 50;
  unsigned seed = 1;
  bool real = false;
  bool json = false;
};

class Scratch {
 public:
  Scratch() : arena{std::filesystem::temp_directory_path() / ("dtrain-stress-" + random_hex(8))} {
    std::filesystem::create_directories(arena.folder / "runs");
  }
  ~Scratch() {
    std::error_code ignored;
    if (!keep) std::filesystem::remove_all(arena.folder, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  stress::Arena arena;
  bool keep = false;
};

struct Running {
  Process process;
  unsigned seed = 0;
  bool killed = false;
};

void reap(std::vector<Running>& running, std::vector<stress::Launcher>& ended) {
  std::erase_if(running, [&](Running& launcher) {
    const auto status = launcher.process.wait(0ms);
    if (status) ended.push_back({launcher.seed, launcher.killed, status->code});
    return status.has_value();
  });
}

Running start(const Options& options, const stress::Arena& arena, unsigned seed) {
  ProcessOptions launcher;
  launcher.command = {executable_path(), "--launcher", arena.folder, std::to_string(seed)};
  if (options.real) launcher = stress::launch_of(arena, seed);
  const auto output = arena.output(seed);
  const UniqueFd fd(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  launcher.fds = {{1, fd.get()}, {2, fd.get()}};
  return {Process::start(launcher), seed};
}

std::vector<stress::Launcher> run(const Options& options, const stress::Arena& arena) {
  std::mt19937 random(options.seed);
  std::vector<Running> running;
  std::vector<stress::Launcher> ended;
  unsigned next = options.seed * 100'000;
  const auto stop = SteadyClock::now() + std::chrono::seconds(options.seconds);
  std::uniform_int_distribution<int> one_of(1, options.real ? kOneInReal : kOneIn);
  while (SteadyClock::now() < stop || !running.empty()) {
    if (SteadyClock::now() > stop + kHangs) throw Error(std::to_string(running.size()) + " launchers hang");
    const bool going_on = SteadyClock::now() < stop;
    while (going_on && running.size() < options.launchers) {
      running.push_back(start(options, arena, next++));
    }
    std::this_thread::sleep_for(50ms);
    for (Running& launcher : running) {
      if (!going_on || launcher.killed || one_of(random) != 1) continue;
      launcher.killed = true;
      launcher.process.kill(SIGKILL);
    }
    reap(running, ended);
  }
  return ended;
}

// What killed launchers have left is freed by the next process that looks.
void wait_for_the_last(const stress::Arena& arena) {
  const SystemClock clock;
  Ledger ledger = Ledger::open(arena.state(), clock);
  const auto deadline = SteadyClock::now() + kHangs;
  while (!ledger.list(Which::kNotEnded).empty() && SteadyClock::now() < deadline) std::this_thread::sleep_for(50ms);
}

int stress_test(const Options& options) {
  Scratch scratch;
  const std::vector<stress::Launcher> launchers = run(options, scratch.arena);
  wait_for_the_last(scratch.arena);
  const stress::Findings findings = stress::check(scratch.arena, launchers);
  for (const std::string& problem : findings.problems) std::cerr << "queue_stress: " << problem << "\n";
  scratch.keep = !findings.problems.empty();
  if (scratch.keep) std::cerr << "queue_stress: all there is about it is in " << scratch.arena.folder.string() << "\n";
  const Json result = {
      {"seconds", options.seconds}, {"launchers", launchers.size()},       {"tasks", findings.tasks},
      {"done", findings.done},      {"killed", findings.ended_after_kill}, {"problems", findings.problems.size()}};
  if (options.json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  }
  return findings.problems.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto number = [&](std::size_t index) { return std::atoi(words.at(index).c_str()); };
  if (words.size() == 3 && words[0] == "--launcher") {
    return stress::run_launcher({words[1]}, static_cast<unsigned>(number(2)));
  }
  if (words.size() > 2 && words[0] == "--rank-of-launch") return stress::run_rank_of_launch({words[1]}, argv + 3);
  if (words.size() == 5 && words[0] == "--rank") return stress::run_rank({words[1]}, words[2], number(3), number(4));
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--json") {
      options.json = true;
    } else if (words[i] == "--real") {
      options.real = true;
    } else if (words[i] == "--seconds" && i + 1 < words.size()) {
      options.seconds = number(++i);
    } else if (words[i] == "--launchers" && i + 1 < words.size()) {
      options.launchers = static_cast<std::size_t>(number(++i));
    } else if (words[i] == "--seed" && i + 1 < words.size()) {
      options.seed = static_cast<unsigned>(number(++i));
    } else {
      std::cerr << "usage: queue_stress [--seconds N] [--launchers N] [--seed N] [--real] [--json]\n";
      return 2;
    }
  }
  return stress_test(options);
} catch (const std::exception& error) {
  std::cerr << "queue_stress: " << dtrain::describe(error) << "\n";
  return 1;
}
