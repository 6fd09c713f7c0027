#include "hosts.h"

#include <cstdio>
#include <fstream>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::bench {
namespace {

constexpr auto kPatience = std::chrono::minutes(5);
const std::string kTwoHosts = DTRAIN_SOURCE_DIR "/tests/harness/two_hosts.sh";

}  // namespace

void run_together(const std::vector<std::vector<std::string>>& commands, const std::filesystem::path& folder, bool pin,
                  const std::map<std::string, std::string>& environment) {
  const auto log_path = folder / "log";
  const UniqueFd log(::open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  std::vector<Process> processes;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    ProcessOptions options;
    options.command = commands[i];
    options.environment = environment;
    options.environment["OMP_NUM_THREADS"] = options.environment["MKL_NUM_THREADS"] = "1";
    options.environment["DTRAIN_STATE_DIR"] = folder / ("state" + std::to_string(i));  // none waits for another
    if (pin) options.cpus = {static_cast<int>(i)};
    options.working_folder = folder;
    options.fds = {{1, log.get()}, {2, log.get()}};
    processes.push_back(Process::start(options));
  }
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const auto status = processes[i].wait(kPatience);
    if (status && status->success()) continue;
    throw Error(commands[i].front() + (status ? " ended with " + status->describe() : " did not end in 5 minutes"),
                "it said:\n" + read_file(log_path, 1 << 20));
  }
}

std::string program(const char* name) {
  return executable_path().parent_path() / name;
}

TwoHosts::~TwoHosts() {
  if (!up_) return;
  try {
    run_together({{kTwoHosts, "down", folder_}}, folder_.parent_path(), false);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the two hosts were not removed: %s\n", error.what());
  }
}

void TwoHosts::shape(const std::string& rate) {
  run_together({{kTwoHosts, up_ ? "rate" : "up", folder_, rate}}, folder_.parent_path(), false);
  up_ = true;
}

std::vector<std::string> TwoHosts::on(const char* host, std::vector<std::string> command) const {
  command.insert(command.begin(), {kTwoHosts, "run", folder_, host});
  return command;
}

std::vector<std::string> TwoHosts::mpirun(std::vector<std::string> command) const {
  command.insert(command.begin(), {kTwoHosts, "mpirun", folder_, "--host", "nodea:1,nodeb:1", "-np", "2", "-x",
                                   "OMP_NUM_THREADS", "-x", "MKL_NUM_THREADS", "-x", "XDG_CACHE_HOME"});
  return command;
}

std::vector<Step> read_steps(const std::filesystem::path& run, int rank) {
  std::vector<Step> steps;
  std::ifstream lines(run / "profile" / ("rank-000" + std::to_string(rank) + ".jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record.value("record", "") != "step") continue;
    const Json& phases = record["phases"];
    steps.push_back({record["wall_ns"].get<double>() / 1e6, phases["allreduce_wait"].get<double>() / 1e6,
                     phases["train_batch.backward"].get<double>() / 1e6});
  }
  if (steps.empty()) throw Error(run.string() + " has no steps of rank " + std::to_string(rank));
  return steps;
}

}  // namespace dtrain::bench
