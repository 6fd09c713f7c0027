// The folder of one run: where it is made, what its files are called, and how it is found again by name or number.
// Plain functions; making one is safe beside other processes doing the same.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dtrain::run {

struct RunFolder {
  std::filesystem::path path;  // absolute

  std::filesystem::path experiment() const { return path / "experiment.yaml"; }
  std::filesystem::path plan() const { return path / "plan.json"; }
  std::filesystem::path events() const { return path / "events.jsonl"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path logs() const { return path / "logs"; }
  std::filesystem::path log(int rank) const;  // logs/rank-0000.log
  std::filesystem::path profile() const { return path / "profile"; }
  std::filesystem::path launch() const { return path / "launch"; }  // what mpirun or srun was given
};

// Makes `requested`, or the next runs/NNNN-name under the current folder where `requested` is empty, with its
// sub-folders and experiment.yaml (`experiment_text`). ConfigError when `requested` already holds a run.
RunFolder create_run_folder(const std::filesystem::path& requested, const std::string& name,
                            const std::string& experiment_text);

// The run that `text` means: a path, or a name ("0007-fashion-mnist"), a number ("7", "run:7") or the latest of a name
// ("fashion-mnist") under ./runs; "task:127": the run of that task, wherever it is. ConfigError names the nearest one.
RunFolder find_run(const std::string& text);

// Those under ./runs, the newest last.
std::vector<RunFolder> all_runs();

}  // namespace dtrain::run
