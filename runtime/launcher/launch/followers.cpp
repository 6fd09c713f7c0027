#include "launch/followers.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/follow.h"
#include "entrypoint.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr auto kLongestCheck = std::chrono::seconds(30);
constexpr auto kPatienceAtEnd = std::chrono::seconds(15);
constexpr std::int64_t kEndOfLog = 4096;

// Returns dtrain's part in Python: in the build, in a wheel, or in an installed dtrain.
fs::path folder_of_follower() {
  const fs::path beside = executable_path().parent_path();
  std::error_code code;
  for (const char* place : {"../python/dtrain/follow", "../follow", "../share/dtrain/follow"}) {
    if (fs::path folder = (beside / place).lexically_normal(); fs::exists(folder / "__main__.py", code)) return folder;
  }
  throw Error("the part of dtrain follow in Python is neither in the build's folder python nor installed beside " +
                  executable_path().string(),
              "build it (make build), or install dtrain anew");
}

const char* word_of(const config::Tracker& tracker) {
  return config::word_of(config::kTrackerTools, tracker.tool);
}

std::string last_line(const fs::path& log) {
  const UniqueFd fd(::open(log.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return {};
  const std::int64_t size = ::lseek(fd.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::min(size, kEndOfLog)), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), size - static_cast<std::int64_t>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  const std::string_view whole = trimmed(text);
  return printable(whole.substr(whole.rfind('\n') + 1));
}

bool is_tracked(const LaunchPlan& plan) {
  return !plan.asked.mock.any() && !plan.asked.is_trial;
}

}  // namespace

std::vector<std::string> follow_command(const FollowRequest& request, const rank::Variables& variables) {
  std::vector<std::string> command{find_python(variables, "dtrain follow"), "-B", folder_of_follower()};
  command.insert(command.end(), {"--to", word_of(request.tracker)});
  if (!request.tracker.address.empty()) command.insert(command.end(), {"--url", request.tracker.address});
  command.insert(command.end(), request.options.begin(), request.options.end());
  if (!request.run.empty()) command.push_back(request.run.string());
  return command;
}

void check_trackers(const LaunchPlan& plan, const rank::Variables& variables) {
  if (!is_tracked(plan)) return;
  for (const config::Tracker& tracker : plan.experiment.tracking) {
    Pipe pipe = make_pipe();
    const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ProcessOptions options;
    options.command = follow_command({.run = {}, .tracker = tracker, .options = {"--check"}}, variables);
    options.fds = {{0, nothing.get()}, {1, nothing.get()}, {2, pipe.writer.get()}};
    Process process = Process::start(options);
    pipe.writer.reset();
    const auto said = read_to_end(pipe.reader.get(), steady_clock::now() + kLongestCheck);
    const auto ended = process.wait(std::chrono::seconds(1));
    if (ended && ended->success()) continue;
    throw ConfigError(plan.experiment.file.string() + ": tracking: " + printable(trimmed(said.value_or("no answer"))),
                      "or leave tracking out: `dtrain follow RUN --to " + std::string(word_of(tracker)) +
                          "` shows the run there at any time, also after its end");
  }
}

Followers::Followers(const LaunchPlan& plan, const rank::RunFolder& folder, const rank::Variables& variables)
    : folder_(folder), variables_(variables) {
  if (!is_tracked(plan)) return;
  std::vector<std::string> names;
  for (const config::Tracker& tracker : plan.experiment.tracking) {
    const std::string word = word_of(tracker);
    const auto same = std::count(names.begin(), names.end(), word);
    names.push_back(word);
    const std::string number = same > 0 ? "-" + std::to_string(same + 1) : "";
    followers_.push_back({tracker, folder.path / "follow" / (word + number + ".log"), std::nullopt});
    start(followers_.back());
  }
}

Followers::~Followers() {
  for (Follower& follower : followers_) {
    if (follower.process) follower.process->detach();
  }
}

void Followers::start(Follower& follower) const {
  try {
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    make_folder(follower.log.parent_path());
    const UniqueFd log(::open(follower.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!log) throw SystemError("cannot write " + follower.log.string(), errno);
    ProcessOptions options;
    options.command =
        follow_command({.run = folder_.path, .tracker = follower.tracker, .options = {"--beside"}}, variables_);
    options.fds = {{0, nothing.get()}, {1, log.get()}, {2, log.get()}};
    options.in_background = true;
    follower.process.emplace(Process::start(options));
  } catch (const Error& error) {
    std::fprintf(stderr, "dtrain: warning: the run is not shown in %s: %s\n", word_of(follower.tracker), error.what());
  }
}

std::string Followers::finish() {
  std::string rows;
  const auto deadline = steady_clock::now() + kPatienceAtEnd;
  for (Follower& follower : followers_) {
    if (!follower.process) continue;
    auto ended = follower.process->wait(std::chrono::milliseconds(0));
    if (ended && ended->signal != 0) {
      start(follower);
      ended.reset();
    }
    if (!ended) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
      ended = follower.process->wait(std::max(left, std::chrono::milliseconds(0)));
    }
    rows += row_of(follower, ended);
  }
  return rows;
}

std::string Followers::row_of(const Follower& follower, const std::optional<ExitStatus>& ended) const {
  const std::string word = word_of(follower.tracker);
  const std::string by_hand = rank::own_command() + " follow " + rank::reference_of(folder_) + " --to " + word +
                              (follower.tracker.address.empty() ? "" : " --url " + follower.tracker.address);
  if (ended && ended->success()) return "tracking    " + last_line(follower.log) + "\n";
  if (!ended) {
    return "tracking    " + word + " has not got everything yet: process " + std::to_string(follower.process->pid()) +
           " goes on sending (" + rank::shown_path(follower.log) + "); after it `" + by_hand + "` does\n";
  }
  return "tracking    " + word + " has not got everything: " + last_line(follower.log) + " (" +
         rank::shown_path(follower.log) + "); `" + by_hand + "` goes on\n";
}

}  // namespace dtrain::launcher
