// The folder of a run: makes it, names its files, and finds it by name or number. Plain functions; several processes
// may make folders at the same time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace dtrain::run
