#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <future>
#include <set>
#include <thread>

#include "commands/job_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "launch/job_memory.h"
#include "launch/job_ranks.h"
#include "launch/recoveries.h"
#include "network/network_choice.h"

namespace dtrain::launcher {

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
struct JobFolder {
  fs::path path;
  explicit JobFolder(fs::path folder) : path(std::move(folder)) { make_folder(path); }
  ~JobFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
};

}  // namespace

std::string to_text(const rank::LaunchSecrets& secrets) {
  return secrets.launch + "." + secrets.ranks;
}

SecretFile::SecretFile(std::filesystem::path path, const rank::LaunchSecrets& secrets) : path_(std::move(path)) {
  ::unlink(path_.c_str());
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const std::string text = to_text(secrets);
  if (!fd || write_all(fd.get(), text) != text.size()) {
    const int code = errno;
    if (fd) ::unlink(path_.c_str());
    throw SystemError("cannot write " + path_.string() + ", which proves to ranks that they belong to this run", code);
  }
}

SecretFile::~SecretFile() {
  ::unlink(path_.c_str());
}

RemoteHosts::Answer RemoteHosts::ask(const std::string& host, const std::string& script, int output,
                                     std::chrono::milliseconds patience, const std::string& input) const {
  const fs::path errors = fs::temp_directory_path() / ("dtrain-ask-" + random_hex(8));
  Answer answer;
  {
    const UniqueFd in = input.empty() ? UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)) : pipe_with(input);
    const UniqueFd said(::open(errors.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!said) throw SystemError("cannot write " + errors.string(), errno);
    ProcessOptions options;
    options.command = command(host, script);
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

std::vector<std::string> RemoteHosts::command(const std::string& host, const std::string& script) const {
  std::vector<std::string> words = shell_;
  words.push_back(host);
  words.push_back("sh -c " + shell_quoted(script));
  return words;
}

std::optional<Failure> RemoteHosts::find_fault(const PlacedLaunch& placed,
                                               const std::vector<std::string>& needed_files) const {
  std::string script = "command -v orted >/dev/null || { echo 'has no orted (Open MPI) in its PATH' >&2; exit 40; }";
  for (const std::string& file : needed_files) {
    script += "; test -e " + shell_quoted(file) + " || { echo " + shell_quoted("has no " + file) + " >&2; exit 40; }";
  }
  std::set<std::string> asked{placed.host};
  for (const rank::RankPlacement& rank : placed.ranks) {
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
                             " true` must work without a password; mpirun starts its daemons that way",
                   .lost_host = true};
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, RemoteHosts::Answer>> RemoteHosts::ask_all(const PlacedLaunch& placed,
                                                                              const std::string& script,
                                                                              const std::string& input) const {
  std::set<std::string> hosts;
  for (const rank::RankPlacement& rank : placed.ranks) {
    if (rank.host != placed.host) hosts.insert(rank.host);
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

std::vector<std::string> RemoteHosts::hand_out(const PlacedLaunch& placed, const fs::path& file,
                                               const std::string& text) const {
  // Hosts may share the folder; the file then exists and is this user's. Its name is random: no other user made it.
  const std::string name = shell_quoted(file.string());
  const std::string script =
      "if [ -O " + name + " ]; then cat >/dev/null; else umask 077; set -C; cat >" + name + "; fi";
  std::vector<std::string> problems;
  for (const auto& [host, answer] : ask_all(placed, script, text)) {
    if (!answer.came) problems.push_back("host " + host + ": " + answer.said);
  }
  return problems;
}

void RemoteHosts::take_back(const PlacedLaunch& placed, const fs::path& file) const {
  ask_all(placed, "rm -f " + shell_quoted(file.string()), {});
}

void RemoteHosts::remove(const PlacedLaunch& placed, const std::vector<std::string>& folders) const {
  std::string script = "rm -rf --";
  for (const std::string& folder : folders) script += " " + shell_quoted(folder);
  ask_all(placed, script, {});
}

std::string RemoteHosts::collect(const std::string& host, const rank::HostReport& report,
                                 const rank::RunFolder& folder) const {
  const JobFolder scratch(folder.launch() / ("from-" + host));
  const fs::path archive = scratch.path / "archive.tar";
  const std::string there = shell_quoted(folder.path.string());
  const std::string marked = "test -e " + there + "/" + rank::kHostFolderMark;
  const std::string left = "what its ranks recorded is still on host " + host + ", in " + folder.path.string();
  {
    const UniqueFd output(::open(archive.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!output) throw SystemError("cannot write " + archive.string(), errno);
    // The monitor ends last, after its ranks.
    const std::string monitor = std::to_string(report.monitor_pid);
    const std::string script = marked + " && i=0; while [ $i -lt 100 ] && [ " + monitor + " -gt 0 ] && kill -0 " +
                               monitor + " 2>/dev/null; do sleep 0.1; i=$((i+1)); done; " + marked + " && tar -C " +
                               there + " -cf - .";
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
  fs::remove(unpacked / rank::kHostFolderMark, ignored);
  std::vector<fs::path> left_out;
  try {
    left_out = rank::merge_folder(rank::RunFolder{unpacked}, folder);
  } catch (const Error& error) {
    throw Error("host " + host + ": " + describe(error), left);
  }
  ask(host, marked + " && rm -rf " + there, -1, kAskPatience);
  std::vector<std::string> names;
  for (const fs::path& name : left_out) names.push_back((folder.path / name).string());
  return names.empty() ? "" : "files of host " + host + " that are not plain files were left out: " + join(names, ", ");
}

// `launcher: mpi`, and `launcher: slurm` inside an allocation: mpirun or srun starts the ranks of an attempt, on this
// host and others.

namespace {

constexpr auto kMonitorPatience = std::chrono::seconds(5);

// Returns the orders that the launcher sends to the ranks. Marks the run's folder as the launcher's
// (checkpoint_folder.h).
rank::LaunchOrders orders_for(const Attempt& attempt) {
  const std::string token = random_hex(16);
  rank::mark_folder(attempt.folder, token);
  rank::LaunchOrders orders{.run_dir = attempt.folder.path,
                            .token = token,
                            .plan = read_file(attempt.folder.plan()),
                            .experiment = read_file(attempt.folder.experiment()),
                            .resume_from = attempt.resume.path,
                            .resume_step = attempt.resume.step};
  for (const rank::RankPlacement& rank : attempt.placed.ranks) orders.agents.push_back(rank.agent);
  if (attempt.job_memory) attempt.job_memory->add_to(orders, attempt.placed);
  return orders;
}

// Returns the address of this host that the ranks can reach. ConfigError if it is ambiguous.
std::string listening_address(const PlacedLaunch& placed) {
  if (placed.is_on_this_host()) return "127.0.0.1";
  const std::string network = placed.network_interface();
  return host::reachable_address(network == "auto" ? "" : network,
                                 placed.cluster.source + ": task_container_defaults.dtrain_network_interface: ");
}

// Returns the command that mpirun or srun starts for each rank.
std::vector<std::string> rank_command(const PlacedLaunch& placed) {
  std::vector<std::string> command{executable_path().string(), "start-rank"};
  command.insert(command.end(), placed.command.begin(), placed.command.end());
  return command;
}

// Prints the warning and writes it as an event. A full disk does not change how the run has ended.
void warn_not_collected(const Attempt& attempt, const std::string& text) {
  attempt.screen.line("dtrain: warning: " + text);
  attempt.events.write("not_collected", {{"cause", text}});
}

// Waits until the monitors on this host have ended (a moment after their ranks), for some seconds at most.
void await_monitors_here(const Attempt& attempt, const JobEnd& end) {
  const auto deadline = std::chrono::steady_clock::now() + kMonitorPatience;
  for (const auto& [agent, report] : end.hosts) {
    if (report.host != attempt.placed.host || report.monitor_pid <= 0) continue;
    while (::kill(static_cast<pid_t>(report.monitor_pid), 0) == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace

Outcome run_mpi(const Attempt& attempt) {
  const PlacedLaunch& placed = attempt.placed;
  const RemoteHosts hosts(remote_shell(placed.launcher().options, attempt.variables));
  const bool recovers = attempt.recoveries && attempt.recoveries->recovers();
  if (recovers && attempt.recoveries->lost_host()) {
    if (auto end = await_hosts(attempt, hosts)) return *std::move(end);
  }
  RankPlane plane(listening_address(placed), orders_for(attempt), make_stderr_logger());
  const std::filesystem::path ranks_file = attempt.folder.launch() / "hostfile";
  write_file_atomic(ranks_file, hostfile(placed));

  rank::LauncherContact contact = plane.contact();
  contact.on_gpus = placed.on_gpus();
  // Every host has /tmp.
  const SecretFile secret("/tmp/dtrain-secret-" + random_hex(16), contact.secrets);
  contact.secret_file = secret.path();
  auto problems = hosts.hand_out(placed, secret.path(), to_text(contact.secrets));
  if (recovers && !problems.empty()) {  // a host is lost that had been there at the last failure
    if (auto end = await_hosts(attempt, hosts)) return *std::move(end);
    problems = hosts.hand_out(placed, secret.path(), to_text(contact.secrets));
  }
  if (!problems.empty()) {
    contact.secret_file.clear();
    attempt.screen.line(
        "dtrain: warning: the run's secret is sent to the ranks in an environment variable, unencrypted, over mpirun's "
        "network: " +
        join(problems, "; "));
  }
  Job job{.name = "mpirun", .variables = job_variables(placed, contact)};
  MpiCommand command{.options = placed.launcher().options,
                     .network = placed.is_on_this_host() ? "auto" : placed.network_interface(),
                     .hostfile = ranks_file,
                     .ranks = placed.world_size(),
                     .as_root = ::geteuid() == 0,
                     .passed = passed_on(job.variables, attempt.variables)};
  command.program = rank_command(placed);
  job.command = mpirun_arguments(command);

  const JobEnd end = watch_job(attempt, plane, job);
  if (end.joined < placed.world_size()) hosts.take_back(placed, secret.path());  // else the ranks have removed it
  const JobWords words = read_mpirun_words(end.errors, end.error ? end.error->rank : -1);
  const bool was_lost = end.error && end.error->departure == comm::Departure::kSilent;
  const std::string lost_host =
      was_lost ? placed.ranks.at(static_cast<std::size_t>(std::max(0, end.error->rank))).host : words.lost_host;
  std::vector<std::string> not_collected;
  for (const auto& [agent, report] : end.hosts) {
    if (report.has_folder) continue;
    const auto rank = std::find_if(placed.ranks.begin(), placed.ranks.end(),
                                   [&name = agent](const rank::RankPlacement& place) { return place.agent == name; });
    try {
      if (was_lost && rank->host == lost_host) throw Error("host " + lost_host + " is lost");
      const std::string missing = hosts.collect(rank->host, report, attempt.folder);
      if (!missing.empty()) not_collected.push_back(missing);
    } catch (const std::exception& error) {  // any error: how the run itself ended is known and stays
      const auto* const typed = dynamic_cast<const Error*>(&error);
      not_collected.push_back("the records of agent " + agent + " are not all in the run's folder: " + describe(error) +
                              (typed && !typed->remedy().empty() ? "; " + typed->remedy() : ""));
    }
  }
  await_monitors_here(attempt, end);
  Outcome outcome = judge_job(placed, attempt.folder, end, words, job.name);
  for (const std::string& text : not_collected) warn_not_collected(attempt, text);
  // A host that lacks something ends the ranks of other hosts too, so a lost connection explains nothing.
  const bool said_why = end.error && comm::is_reported(end.error->departure);
  if (outcome.failure && end.joined == 0 && !said_why) {
    try {
      if (auto fault = hosts.find_fault(
              placed, {executable_path().string(), placed.command.front(), placed.experiment.file.string()})) {
        fault->may_pass = recovers && fault->lost_host;  // it had been there before
        fault->lines = outcome.failure->lines;
        fault->said_by = outcome.failure->said_by;
        outcome.failure = std::move(fault);
      }
    } catch (const Error& error) {  // the search failed: the known cause stays
      attempt.screen.line("dtrain: warning: " + describe(error));
    }
  }
  return outcome;
}

void remove_on_hosts(const PlacedLaunch& placed, const rank::Variables& variables,
                     const std::vector<std::string>& folders) {
  if (folders.empty()) return;
  if (placed.launcher().type == config::LauncherType::kMpi) {
    return RemoteHosts(remote_shell(placed.launcher().options, variables)).remove(placed, folders);
  }
  std::set<std::string> others;
  for (const rank::RankPlacement& rank : placed.ranks) {
    if (rank.host != placed.host) others.insert(rank.host);
  }
  std::vector<std::string> remove{"rm", "-rf", "--"};
  remove.insert(remove.end(), folders.begin(), folders.end());
  for (const std::string& host : others) Process::start({.command = over_srun()(host, remove)}).wait(kAskPatience);
}

Outcome run_slurm(const Attempt& attempt) {
  const PlacedLaunch& placed = attempt.placed;
  RankPlane plane(listening_address(placed), orders_for(attempt), make_stderr_logger());
  rank::LauncherContact contact = plane.contact();
  contact.on_gpus = placed.on_gpus();
  const SecretFile secret(attempt.folder.launch() / "secret", contact.secrets);  // a folder that the nodes share
  contact.secret_file = secret.path();
  Job job{.name = "srun", .variables = job_variables(placed, contact)};
  job.command = srun_arguments(placed, rank_command(placed));
  if (placed.placement.size() > 1) {
    const std::filesystem::path ranks_file = attempt.folder.launch() / "hostfile";
    write_file_atomic(ranks_file, slurm_hostfile(placed));
    job.variables["SLURM_HOSTFILE"] = ranks_file.string();
  }
  const JobEnd end = watch_job(attempt, plane, job);
  await_monitors_here(attempt, end);
  Outcome outcome =
      judge_job(placed, attempt.folder, end, read_srun_words(end.errors, end.error ? end.error->rank : -1), job.name);
  for (const auto& [agent, report] : end.hosts) {
    if (report.has_folder) continue;
    warn_not_collected(attempt, "the records of agent " + agent + " are on its host " + report.host + " alone, in " +
                                    attempt.folder.path.string() + ": the run's folder is not shared with it");
  }
  return outcome;
}

}  // namespace dtrain::launcher
