// The folder of a run: makes it, names its files, and finds it by name or number. Plain functions; several processes
// may make folders at the same time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::rank {

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
// and experiment.yaml (`experiment_text`, readable as `private_mode` says). ConfigError if `requested` already holds a
// run.
RunFolder create_run_folder(const std::filesystem::path& requested, const std::string& name,
                            const std::string& experiment_text, mode_t private_mode = 0600);

// Lets the group read what this process and its children write from now on, if the experiment shares the run with it.
void share_new_files(const config::Experiment& experiment);

// "Fashion MNIST (CNN)" -> "fashion-mnist-cnn"
std::string folder_name(const std::string& name);

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

// events.jsonl: one JSON object per line, appended whole. Thread safe; several processes append to the same file.

class EventLog {
 public:
  // `rank` -1: the launcher.
  EventLog(const std::filesystem::path& path, const Clock& clock, int rank, std::string host);
  // {"time", "event", "rank", "pid", "host", …fields}. SystemError if the disk is full.
  void write(const std::string& event, const Json& fields = {});

 private:
  const Clock& clock_;
  int rank_;
  std::string host_;
  std::mutex mutex_;
  LineAppender file_;
};

// Returns the fields of the last event of a run, "run_ended". `cause` is empty unless the run failed.
Json run_ended(ExitCode exit_code, const std::string& cause);

// Watches whether a run's folder is still in its place: open files stay usable after the folder was removed or moved,
// so nothing else shows it until the next file is to be made. Any thread.

class FolderWatch {
 public:
  FolderWatch() = default;  // of no folder, which is always in its place
  // SystemError if the folder cannot be opened.
  explicit FolderWatch(std::filesystem::path folder);

  // "was removed", "was moved to /data/old"; empty: it is in its place, or the file system does not answer. Looks.
  std::string gone() const;
  // Returns the folder for the final weights in that case: beside the run's folder, used by no run. It may not exist.
  const std::filesystem::path& substitute() const { return substitute_; }

  // Returns the warning for the time while the run goes on.
  std::string warning(const std::string& gone) const;
  // Returns the error for the run's end: with the path of the final weights if they are in the substitute.
  std::string error(const std::string& gone) const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path substitute_;
  UniqueFd fd_;
};

// Shows that a process carries out the run in a folder: by a lock, which ends with that process, however it ends, and
// by the file .owner for hosts that do not see each other's locks (NFS with nolock, Lustre with localflock). One thread
// besides the thread that an owner starts.

// Returns a number that tells a folder from its copies, on every host. 0: not known.
std::uint64_t inode_of(const std::filesystem::path& folder);

struct OwnerProcess {
  std::string host;         // for messages
  std::string host_key;     // HostIdentity::key
  pid_t pid = 0;            // there
  std::uint64_t start = 0;  // in ticks since that host's boot

  static OwnerProcess self();
};

struct OwnerTimes {
  std::chrono::milliseconds beat{5'000};
  // An owner on another host that has not touched the file for that long is gone. The time is longer than a host may
  // take to see the writes of another one.
  std::chrono::milliseconds silence{30'000};
};

// The file .owner in a run's folder: which process carries out the run. The owner touches the file every few seconds,
// and empties it when it ends. A copy of the folder has no owner.
class RunOwner {
 public:
  // Becomes the owner. ConfigError names the present owner if it lives: on this host its process shows this at once;
  // elsewhere the file's time shows it, for which the constructor waits `silence` at most. An owner on one of the hosts
  // `gone` does not count: others have claimed the run (host_claims.h). SystemError if the file cannot be written.
  RunOwner(const std::filesystem::path& run, const OwnerProcess& self, const OwnerTimes& times = {},
           const std::vector<std::string>& gone = {});
  ~RunOwner();
  RunOwner(const RunOwner&) = delete;
  RunOwner& operator=(const RunOwner&) = delete;

 private:
  bool is_mine() const;
  void beat();

  const std::filesystem::path file_;
  const Json self_;
  const OwnerTimes times_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

// Returns the process of this host that carries out the run now. Empty: none does, or one on another host.
std::optional<OwnerProcess> owner_here(const std::filesystem::path& run);
// Returns the process of another host that has carried out the run within the last `silence`, without waiting for it.
std::optional<OwnerProcess> owner_elsewhere(const std::filesystem::path& run, const OwnerTimes& times = {});

// The lock and the owner of a run's folder. One thread.
class RunLock {
 public:
  RunLock() = default;
  // ConfigError naming the holder if another process carries out the run; RunOwner's, as is `gone`.
  static RunLock take(const RunFolder& folder, const std::vector<std::string>& gone = {});
  void release() {
    owner_.reset();
    file_.reset();
  }

  // Around a fork after which the child carries out the run: the lock stays, and the child becomes the owner. A thread,
  // which touches the owner's file, does not survive a fork.
  void disown() { owner_.reset(); }
  void own(const RunFolder& folder, const std::vector<std::string>& gone = {});  // as take()

 private:
  UniqueFd file_;
  std::unique_ptr<RunOwner> owner_;
};

// Asks a run in progress for a trace of its next batches, by a signal to its rank 0. One thread at a time.

struct RequestedTrace {
  std::int64_t first_batch = 0, last_batch = 0;  // the batches that all ranks trace
  std::set<int> written, failed;                 // ranks
};

// Sends the request, then waits until each rank whose events are in this folder has written its trace. Calls `say` once
// the batches are known. ConfigError if the run is over or rank 0 cannot be reached from here; Error if the run
// refuses, or ends before any trace is written.
RequestedTrace request_trace(const RunFolder& folder, int steps, const std::function<void(const std::string&)>& say);

}  // namespace dtrain::rank
