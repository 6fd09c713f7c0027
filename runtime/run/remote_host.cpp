#include "remote_host.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "host_folder.h"
#include "merge_folder.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr auto kAskPatience = std::chrono::seconds(10);
constexpr auto kCollectPatience = std::chrono::minutes(10);

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char letter : text) result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return result + "'";
}

// Goes at the end of this scope.
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
                                     std::chrono::milliseconds patience) const {
  const fs::path errors = fs::temp_directory_path() / ("dtrain-ask-" + random_hex(8));
  Answer answer;
  {
    const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const UniqueFd said(::open(errors.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!said) throw SystemError("cannot write " + errors.string(), errno);
    ProcessOptions options;
    options.command = shell_;
    options.command.push_back(host);
    options.command.push_back("sh -c " + quoted(script));
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
    script += "; test -e " + quoted(file) + " || { echo " + quoted("has no " + file) + " >&2; exit 40; }";
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

void RemoteHosts::collect(const std::string& host, const HostReport& report, const RunFolder& folder) const {
  const ScratchFolder scratch(folder.launch() / ("from-" + host));
  const fs::path archive = scratch.path / "archive.tar";
  const std::string there = quoted(folder.path.string());
  const std::string marked = "test -e " + there + "/" + kHostFolderMark;
  const std::string left = "what its ranks recorded is still on host " + host + ", in " + folder.path.string();
  {
    const UniqueFd output(::open(archive.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!output) throw SystemError("cannot write " + archive.string(), errno);
    // The agent ends last, once its ranks have.
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
  options.command = {"tar", "-C", unpacked.string(), "-xf", archive.string()};
  if (const ExitStatus status = Process::start(options).wait(); !status.success()) {
    throw Error("cannot unpack what came from host " + host + ": tar: " + status.describe(), left);
  }
  fs::remove(unpacked / kHostFolderMark);
  merge_folder(RunFolder{unpacked}, folder);
  ask(host, marked + " && rm -rf " + there, -1, kAskPatience);
}

}  // namespace dtrain::run
