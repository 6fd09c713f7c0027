// `dtrain task list` with 10,000 tasks that have ended, from the command's start to its end.
#include <algorithm>
#include <vector>

#include <fcntl.h>

#include "../harness/temporary_folder.h"
#include "bench_scheduler.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/numeric.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/scheduler/ledger.h"
#include "sqlite.h"

namespace dtrain::scheduler {
namespace {

constexpr int kTasks = 10'000;
constexpr int kListings = 15;

// One task as the ledger leaves it, and copies of it.
void fill(const std::filesystem::path& folder) {
  const SystemClock clock;
  Ledger ledger = Ledger::open(folder, clock);
  TaskRequest request{.name = "fashion-mnist", .run_dir = "/home/somebody/experiments/runs/0001-fashion-mnist"};
  request.slots.slots = 4;
  for (const char* id : {"node-1.example.org", "node-2.example.org"}) {
    request.agents.push_back({.id = id, .slots = 2, .free = 2});
  }
  const TaskId id = ledger.submit(request);
  if (!ledger.try_claim(id)) throw Error("the first task got no slots");
  ledger.end(id, TaskState::kFailed, "rank 1 failed at batch 7: the model makes no sense", 1);
  Database database(folder / "ledger.db", 1000);
  const std::string all =
      "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < " + std::to_string(kTasks) + ") ";
  database.execute(
      all +
      "INSERT INTO tasks SELECT i, name, state, reason, priority, slots, claim, run_dir, boot, namespace, pid, "
      "ticks, lease, kills, placed_by_others, submitted, started, ended, exit_code, request, entered FROM tasks, n "
      "WHERE id = 1");
  database.execute(all + "INSERT INTO changes SELECT i, state, time, reason FROM changes, n WHERE task = 1");
}

double list_ms(const std::filesystem::path& folder, const std::vector<std::string>& options, std::size_t least_lines) {
  const auto output = folder / "output";
  const UniqueFd fd(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ProcessOptions command;
  command.command = {executable_path().parent_path() / "dtrain", "task", "list"};
  command.command.insert(command.command.end(), options.begin(), options.end());
  command.environment = {{"DTRAIN_STATE_DIR", folder}};
  command.fds = {{1, fd.get()}};
  const SystemClock clock;
  const Nanoseconds begin = clock.monotonic();
  Process process = Process::start(command);
  const ExitStatus status = process.wait();
  const Nanoseconds took = clock.monotonic() - begin;
  const std::string text = read_file(output);
  if (!status.success() || static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) < least_lines) {
    throw Error("dtrain task list: " + status.describe() + " after " + std::to_string(text.size()) + " bytes");
  }
  return to_seconds(took) * 1e3;
}

double median_ms(const std::filesystem::path& folder, const std::vector<std::string>& options,
                 std::size_t least_lines) {
  std::vector<double> times;
  for (int run = 0; run < kListings; ++run) times.push_back(list_ms(folder, options, least_lines));
  return median_low(std::move(times));
}

}  // namespace

Json measure_task_list() {
  const TemporaryFolder scratch;
  fill(scratch.path());
  return {{"task_list_tasks", kTasks},
          {"task_list_ms", median_ms(scratch.path(), {}, kTasks + 1)},
          {"task_list_csv_ms", median_ms(scratch.path(), {"--csv"}, kTasks + 1)},
          {"task_list_json_ms", median_ms(scratch.path(), {"--json"}, 1)},
          {"task_list_active_ms", median_ms(scratch.path(), {"--active"}, 0)}};
}

}  // namespace dtrain::scheduler
