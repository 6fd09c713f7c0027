// The folder of a run: makes it, names its files, and finds it by name or number. Plain functions; several processes
// may make folders at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::run {

struct RunFolder {
  std::filesystem::path path;  // absolute

  std::optional<int> number() const;  // 7 of "0007-fashion-mnist"; empty: the name has none
  std::filesystem::path experiment() const { return path / "experiment.yaml"; }
  std::filesystem::path plan() const { return path / "plan.json"; }
  std::filesystem::path events() const { return path / "events.jsonl"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path metrics_events() const;  // the folder of TensorBoard's event files that rank 0 writes
  std::filesystem::path logs() const { return path / "logs"; }
  std::filesystem::path log(int rank) const;                                      // logs/rank-0000.log
  std::filesystem::path launcher_log() const { return logs() / "launcher.log"; }  // of a launch with --detach
  std::filesystem::path profile() const { return path / "profile"; }
  std::filesystem::path launch() const { return path / "launch"; }  // the files for mpirun or srun
};

// Makes `requested`, or the next runs/NNNN-name under the current folder if `requested` is empty, with its sub-folders
// and experiment.yaml (`experiment_text`). ConfigError if `requested` already holds a run.
RunFolder create_run_folder(const std::filesystem::path& requested, const std::string& name,
                            const std::string& experiment_text);

// Finds the run that `text` names: a path; under ./runs a folder ("0007-fashion-mnist"), a number ("7", "run:7") or the
// latest of a name ("fashion-mnist"); the run of a task anywhere ("task:127"). ConfigError suggests the nearest name.
RunFolder find_run(const std::string& text);

// Returns the runs under ./runs, the newest last.
std::vector<RunFolder> all_runs();
// Returns the runs in a folder: first those with a number, in its order, then the others by name. ConfigError: there is
// no such folder.
std::vector<RunFolder> runs_in(const std::filesystem::path& folder);

// Returns the path, relative if it is below the current folder, and quoted if a shell would not take it for one word.
std::string shown_path(const std::filesystem::path& path);

// Returns the command that calls this program from the current folder: "dtrain" if PATH leads to it, else its path.
std::string own_command();

// Returns the name of the run on a command line: its number under ./runs, else its path, relative if the run is below
// the current folder.
std::string reference_of(const RunFolder& folder);

// The state of a run, from its events. Any thread.

struct RunState {
  std::optional<ExitCode> exit_code;  // of the run; empty: it has not ended, or its end was not recorded
  std::string alive;                  // one of its processes on this host, "rank 0 (pid 4711)"; empty: none is left
  bool started = false;               // it is no longer queued
  int restarts = 0;                   // automatic ones since the launch, `--continue`, or the last progress
  int continued = 0;                  // the number of continuations by a user
  int trained = -1;                   // `continued` at the time when ranks last began to train; -1: never
  std::optional<std::int64_t> last_saved;  // the batch of the last checkpoint that was saved

  bool is_over() const { return exit_code.has_value() || alive.empty(); }
};
RunState read_state(const RunFolder& folder);

// True if the run has ended, or none of its processes is left on this host.
bool is_over(const RunFolder& folder);

// Finds the newest run under ./runs in progress; a queued one only if none has started. ConfigError: there is none.
RunFolder newest_running();

}  // namespace dtrain::run
