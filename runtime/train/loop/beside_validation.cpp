#include "loop/beside_validation.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/process_interface.h"
#include "dtrain/base/pulse.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kLook{20};
constexpr milliseconds kPatienceAtEnd{5000};
constexpr std::chrono::seconds kPeriod{1};
constexpr int kMostStarts = 3;
constexpr std::size_t kShownLines = 5;
constexpr int kLowestPriority = 19;

// The variables by which a launcher and its ranks know each other; the processes have a launcher of their own.
std::vector<std::string> variables_of_rank() {
  std::vector<std::string> names(std::begin(kInternalVariables), std::end(kInternalVariables));
  for (const char* name : {"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK", "DTRAIN_LOCAL_SIZE", "DTRAIN_JOB",
                           "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    names.emplace_back(name);
  }
  return names;
}

// Returns the CPUs of the process that has started this one. A rank is bound to the cores of its slot; the processes
// may use free cores, too.
std::vector<int> cpus_of_parent() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(::getppid(), sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

fs::path folder_of_validations(const rank::RankSession& session) {
  return session.run_dir() / "validation";
}

fs::path make_numbered_folder(const fs::path& all) {
  make_folder(all);
  for (int number = 1;; ++number) {
    fs::path folder = all / std::to_string(number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST) throw SystemError("cannot make the folder " + folder.string(), errno);
  }
}

// Returns the last line of a validation after this batch in a metrics.jsonl.
std::optional<Json> find_result(const fs::path& metrics, std::int64_t batch) {
  std::optional<Json> found;
  std::ifstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    auto json = parse_if_valid(line);
    const bool fits = json && text_at(*json, "kind") == "validation" && value_at<std::int64_t>(*json, "batch") == batch;
    if (fits && json->contains("metrics")) found = std::move(json);
  }
  return found;
}

}  // namespace

// The launch of the evaluating ranks, in a folder of its own in the run's folder.
struct BesideValidation::Processes {
  explicit Processes(const rank::RankSession& session) : session(session) { start(); }
  ~Processes() {
    std::ofstream(orders(), std::ios::app) << to_line(Json{{"end", true}}) << "\n";
    process->wait(kPatienceAtEnd);
  }
  Processes& operator=(Processes&&) = delete;

  fs::path orders() const { return folder / "orders.jsonl"; }
  fs::path metrics() const { return folder / "run" / "metrics.jsonl"; }
  fs::path log() const { return folder / "launch.log"; }
  void ask(const fs::path& checkpoint) {
    std::ofstream file(orders(), std::ios::app);
    file << to_line(Json{{"checkpoint", checkpoint.string()}}) << std::endl;
    if (!file) throw SystemError("cannot write " + orders().string(), errno);
  }

  void start() {
    folder = make_numbered_folder(folder_of_validations(session));
    // Slots of their own: those of the run are taken, and the ledger knows nothing of the processes.
    const int slots = session.world().size;
    write_file_atomic(folder / "cluster.yaml",
                      to_line(Json{{"agents",
                                    {{{"id", "beside"},
                                      {"host", "localhost"},
                                      {"slots", slots},
                                      {"slot_type", "cpu"},
                                      {"resource_pool", session.experiment().resources.resource_pool}}}}}) +
                          "\n");
    const rank::ContinuedRun run = rank::read_continued_run(session.run_dir().string());
    static const char kInThisLibrary = 0;
    std::vector<std::string> command{find_program_beside(&kInThisLibrary, "dtrain").string(),
                                     "launch",
                                     run.experiment_file.string(),
                                     "--trial",
                                     "--orders",
                                     orders().string(),
                                     "--run-dir",
                                     (folder / "run").string(),
                                     "--cluster",
                                     (folder / "cluster.yaml").string()};
    if (!run.contents.empty()) command.insert(command.end(), {"--contents", run.contents.string()});
    const auto set = [&](const std::string& value) { command.insert(command.end(), {"--set", value}); };
    for (const std::string& value : run.overrides) {
      // This process has the variables already; everyone may read the words of a command.
      if (!config::holds_variables(value) && !value.starts_with("initial_weights")) set(value);
    }
    set("initial_weights=null");
    set("resources.slots_per_trial=" + std::to_string(slots));
    set("resources.elastic=null");
    set("resources.cores_per_slot=auto");
    set("resources.slot_type=cpu");
    set("validation.beside=false");
    set("profiling.trace=null");

    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const UniqueFd output(::open(log().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!output) throw SystemError("cannot write " + log().string(), errno);
    ProcessOptions options;
    options.command = std::move(command);
    options.unset = variables_of_rank();
    options.environment = {{"OMP_NUM_THREADS", std::to_string(at::get_num_threads())},
                           {"DTRAIN_STATE_DIR", fs::absolute(folder / "state").string()},
                           {"DTRAIN_CALIBRATION", "false"}};
    options.fds = {{0, nothing.get()}, {1, output.get()}, {2, output.get()}};
    options.cpus = cpus_of_parent();
    options.in_background = true;
    process.emplace(Process::start(options));
  }

  const rank::RankSession& session;
  fs::path folder;
  std::optional<Process> process;
};

BesideValidation::BesideValidation(rank::RankSession& session) : session_(session) {
  if (!session.experiment().validates_beside || session.evaluates()) return;
  const comm::World& world = session.world();
  if (world.local_size == world.size) return;
  throw ConfigError(
      session.experiment().file.string() + ": validation.beside is not supported yet with ranks on several hosts",
      "leave it out, or use resources.is_single_node: true");
}

BesideValidation::~BesideValidation() = default;

void BesideValidation::ask(std::int64_t batch) {
  awaited_ = batch;
  if (session_.world().rank != 0) return;
  if (!processes_) processes_ = std::make_unique<Processes>(session_);
  processes_->ask(checkpoint_of(batch));
}

std::filesystem::path BesideValidation::checkpoint_of(std::int64_t batch) const {
  return session_.checkpoint_folder() / ("step-" + std::to_string(batch));
}

BesideValidation::Answer BesideValidation::take() {
  const std::string key = "train/validated-beside-" + std::to_string(taken_++);
  comm::ControlPlane& control = session_.control();
  if (session_.world().rank == 0) control.set(key, wait_for_result().dump());
  std::optional<std::string> text;
  while (!(text = control.get_within(key, kPeriod))) Pulse::own().move();
  const Json result = Json::parse(*text);
  Answer answer{.batch = std::exchange(awaited_, -1), .checkpoint = checkpoint_of(result.at("batch")).string()};
  answer.epoch = result.at("epoch").get<std::int64_t>();
  answer.reduced.samples = result.at("samples").get<std::int64_t>();
  for (const auto& [name, value] : result.at("metrics").items()) {
    answer.reduced.means.emplace(name, number_of(value).value());
  }
  return answer;
}

// A result that an earlier attempt of the run has computed is as good: the training has the same bits.
std::optional<Json> BesideValidation::find_earlier_result() const {
  std::optional<Json> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder_of_validations(session_), code)) {
    if (auto result = find_result(entry.path() / "run" / "metrics.jsonl", awaited_)) found = std::move(result);
  }
  return found;
}

Json BesideValidation::wait_for_result() {
  if (!processes_) {  // the run goes on from a checkpoint
    if (auto found = find_earlier_result()) return *found;
    ask(awaited_);
  }
  const fs::path checkpoint = checkpoint_of(awaited_);
  std::error_code code;
  if (!fs::exists(checkpoint / checkpoints::kManifestFile, code)) {
    throw Error("the validation of batch " + std::to_string(awaited_) + " has no result, because its checkpoint " +
                    checkpoint.string() + " is not there any more",
                "leave checkpoints that await their validation where they are (awaits_validation in manifest.json)");
  }
  for (int starts = 1;;) {
    Pulse::own().move();
    if (auto found = find_result(processes_->metrics(), awaited_)) return *found;
    const auto ended = processes_->process->wait(kLook);
    if (!ended) continue;
    if (auto found = find_result(processes_->metrics(), awaited_)) return *found;
    if (ended->exit_code() == ExitCode::kBadInput || ++starts > kMostStarts) {
      throw Error("the processes that validate beside the training have ended (" + ended->describe() +
                      "); they said last:\n  " + join(rank::last_lines(processes_->log(), kShownLines), "\n  "),
                  "see " + processes_->folder.string());
    }
    session_.log()->warn("the processes that validate beside the training have ended ({}); they are started again",
                         ended->describe());
    processes_->start();
    processes_->ask(checkpoint);
  }
}

void BesideValidation::visit(StateVisitor& visitor) {
  if (visitor.replaces() || session_.experiment().validates_beside) visitor.number("awaited", awaited_);
}

CheckpointOrders::CheckpointOrders(rank::RankSession& session) : session_(session) {
  std::error_code code;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", code)) {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(std::stoul(thread.path().filename())), kLowestPriority);
  }
}

std::optional<fs::path> CheckpointOrders::next() {
  const std::string key = "train/order-" + std::to_string(number_);
  comm::ControlPlane& control = session_.control();
  if (session_.world().rank == 0) control.set(key, wait_for_order());
  std::optional<std::string> checkpoint;
  while (!(checkpoint = control.get_within(key, kPeriod))) Pulse::own().move();
  ++number_;
  return checkpoint->empty() ? std::nullopt : std::optional<fs::path>(*checkpoint);
}

std::string CheckpointOrders::wait_for_order() {
  for (; !session_.stop_requested(); std::this_thread::sleep_for(kLook)) {
    Pulse::own().move();
    std::ifstream file(session_.orders());
    std::string line;
    for (std::size_t i = 0; i <= number_ && file; ++i) std::getline(file, line);
    if (!file || file.eof()) continue;  // a line without its end is still being written
    const Json order = Json::parse(line);
    if (order.contains("end")) return {};
    const fs::path checkpoint = order.at("checkpoint").get<std::string>();
    std::error_code code;
    if (fs::exists(checkpoint / checkpoints::kManifestFile, code)) return checkpoint.string();
  }
  return {};
}

}  // namespace dtrain::train
