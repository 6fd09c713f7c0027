#include "launch/remote_host.h"

#include <algorithm>
#include <cerrno>
#include <future>
#include <set>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "folder/host_folder.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr auto kAskPatience = std::chrono::seconds(10);
constexpr std::size_t kAskedAtOnce = 16;
constexpr std::size_t kLongestComplaint = 500;
constexpr auto kCollectPatience = std::chrono::minutes(10);

// Returns the read end of a pipe that holds `text`, which must fit into the pipe's buffer.
UniqueFd pipe_with(const std::string& text) {
  Pipe pipe = make_pipe();
  if (write_all(pipe.writer.get(), text) != text.size()) throw SystemError("cannot write into a pipe", errno);
  return std::move(pipe.reader);
}

// A folder that is removed at the end of the scope.
struct ScratchFolder {
  fs::path path;
  explicit ScratchFolder(fs::path folder) : path(std::move(folder)) { make_folder(path); }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
};

}  // namespace

RemoteHosts::Answer RemoteHosts::ask(const std::string& host, const std::string& script, int output,
                                     std::chrono::milliseconds patience, const std::string& input) const {
  const fs::path errors = fs::temp_directory_path() / ("dtrain-ask-" + random_hex(8));
  Answer answer;
  {
    const UniqueFd in = input.empty() ? UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)) : pipe_with(input);
    const UniqueFd said(::open(errors.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!said) throw SystemError("cannot write " + errors.string(), errno);
    ProcessOptions options;
    options.command = shell_;
    options.command.push_back(host);
    options.command.push_back("sh -c " + shell_quoted(script));
    options.fds = {{0, in.get()}, {1, output < 0 ? said.get() : output}, {2, said.get()}};
    Process process = Process::start(options);
    const auto status = process.wait(patience);
    answer.came = status && status->success();
    if (!status) answer.said = "no answer within " + std::to_string(patience.count() / 1000) + " s";
  }
  std::vector<std::string> lines = split(read_file(errors), '\n');
  lines.erase(std::remove(lines.begin(), lines.end(), ""), lines.end());
  if (!lines.empty()) answer.said = join(lines, "; ");
  std::error_code ignored;
  fs::remove(errors, ignored);
  return answer;
}

std::optional<Failure> RemoteHosts::find_fault(const LaunchPlan& plan,
                                               const std::vector<std::string>& needed_files) const {
  std::string script = "command -v orted >/dev/null || { echo 'has no orted (Open MPI) in its PATH' >&2; exit 40; }";
  for (const std::string& file : needed_files) {
    script += "; test -e " + shell_quoted(file) + " || { echo " + shell_quoted("has no " + file) + " >&2; exit 40; }";
  }
  std::set<std::string> asked{plan.host};
  for (const RankPlacement& rank : plan.ranks) {
    if (!asked.insert(rank.host).second) continue;
    const Answer answer = ask(rank.host, script, -1, kAskPatience);
    if (answer.came) continue;
    if (answer.said.find("has no ") != std::string::npos) {
      return Failure{.cause = "host " + rank.host + " " + answer.said.substr(answer.said.find("has no ")),
                     .remedy =
                         "every host needs Open MPI, dtrain, the program and the experiment file under the same "
                         "paths"};
    }
    return Failure{.cause = "host " + rank.host + " (rank " + std::to_string(rank.rank) + ") cannot be reached by " +
                            shell_.front() + ": " + answer.said,
                   .remedy = "`" + join(shell_, " ") + " " + rank.host +
                             " true` must work without a password; mpirun starts its daemons that way"};
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, RemoteHosts::Answer>> RemoteHosts::ask_all(const LaunchPlan& plan,
                                                                              const std::string& script,
                                                                              const std::string& input) const {
  std::set<std::string> hosts;
  for (const RankPlacement& rank : plan.ranks) {
    if (rank.host != plan.host) hosts.insert(rank.host);
  }
  std::vector<std::pair<std::string, Answer>> answers;
  for (auto host = hosts.begin(); host != hosts.end();) {
    std::vector<std::pair<std::string, std::future<Answer>>> asked;
    for (; host != hosts.end() && asked.size() < kAskedAtOnce; ++host) {
      const auto ask_one = [this, &script, &input, name = *host] { return ask(name, script, -1, kAskPatience, input); };
      asked.emplace_back(*host, std::async(std::launch::async, ask_one));
    }
    for (auto& [name, answer] : asked) answers.emplace_back(name, answer.get());
  }
  return answers;
}

std::vector<std::string> RemoteHosts::hand_out(const LaunchPlan& plan, const fs::path& file,
                                               const std::string& text) const {
  // Hosts may share the folder; the file then exists and is this user's. Its name is random: no other user made it.
  const std::string name = shell_quoted(file.string());
  const std::string script =
      "if [ -O " + name + " ]; then cat >/dev/null; else umask 077; set -C; cat >" + name + "; fi";
  std::vector<std::string> problems;
  for (const auto& [host, answer] : ask_all(plan, script, text)) {
    if (!answer.came) problems.push_back("host " + host + ": " + answer.said);
  }
  return problems;
}

void RemoteHosts::take_back(const LaunchPlan& plan, const fs::path& file) const {
  ask_all(plan, "rm -f " + shell_quoted(file.string()), {});
}

std::string RemoteHosts::collect(const std::string& host, const HostReport& report, const RunFolder& folder) const {
  const ScratchFolder scratch(folder.launch() / ("from-" + host));
  const fs::path archive = scratch.path / "archive.tar";
  const std::string there = shell_quoted(folder.path.string());
  const std::string marked = "test -e " + there + "/" + kHostFolderMark;
  const std::string left = "what its ranks recorded is still on host " + host + ", in " + folder.path.string();
  {
    const UniqueFd output(::open(archive.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!output) throw SystemError("cannot write " + archive.string(), errno);
    // The profiling agent ends last, after its ranks.
    const std::string agent = std::to_string(report.agent_pid);
    const std::string script = marked + " && i=0; while [ $i -lt 100 ] && [ " + agent + " -gt 0 ] && kill -0 " + agent +
                               " 2>/dev/null; do sleep 0.1; i=$((i+1)); done; " + marked + " && tar -C " + there +
                               " -cf - .";
    const Answer answer = ask(host, script, output.get(), kCollectPatience);
    if (!answer.came) throw Error("host " + host + ": " + answer.said, left);
  }
  ProcessOptions options;
  const fs::path unpacked = scratch.path / "files";
  make_folder(unpacked);
  // Owners and setuid bits of that host are dropped. tar refuses names that lead out of the folder.
  options.command = {"tar",           "-C", unpacked.string(), "--no-same-owner", "--no-same-permissions", "-xf",
                     archive.string()};
  const fs::path said = scratch.path / "tar.err";
  const UniqueFd errors(::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!errors) throw SystemError("cannot write " + said.string(), errno, left);
  options.fds = {{2, errors.get()}};
  if (const ExitStatus status = Process::start(options).wait(); !status.success()) {
    const std::string text = join(split(read_file(said), '\n'), "; ").substr(0, kLongestComplaint);
    throw Error("cannot unpack what came from host " + host + ": " + status.describe() + ": " + text, left);
  }
  std::error_code ignored;
  fs::remove(unpacked / kHostFolderMark, ignored);
  std::vector<fs::path> left_out;
  try {
    left_out = merge_folder(RunFolder{unpacked}, folder);
  } catch (const Error& error) {
    throw Error("host " + host + ": " + describe(error), left);
  }
  ask(host, marked + " && rm -rf " + there, -1, kAskPatience);
  std::vector<std::string> names;
  for (const fs::path& name : left_out) names.push_back((folder.path / name).string());
  return names.empty() ? "" : "files of host " + host + " that are not plain files were left out: " + join(names, ", ");
}

}  // namespace dtrain::run
