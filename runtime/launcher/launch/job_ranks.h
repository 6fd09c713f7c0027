// The ranks of a run that mpirun or srun starts for `dtrain launch`: a job. They report over the launcher's plane
// (RankPlane); their output arrives as the output of the job. One thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/run_folder.h"
#include "launch/attempts.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

// The facts of a failed job that dtrain itself cannot see: which signal or exit code ended a rank, and which host's
// daemon is gone. Pure functions read them from the messages of mpirun and srun.
//
// mpirun's texts are those of Open MPI 4.1 (help-orterun.txt, help-errmgr-base.txt).
struct EndOfRank {
  int rank = -1;
  int signal = 0;  // 0: it ended with `code`
  int code = 0;
};

struct JobWords {
  std::optional<EndOfRank> first;  // the rank that ended abnormally first
  std::string lost_host;           // the host whose daemon is gone; empty: none
};

// Of several ranks that have ended the result has `rank` if it is among them, else the first one that a signal ended,
// else the first. Text of `dtrain start-rank` counts before mpirun's.
JobWords read_mpirun_words(const std::string& text, int rank = -1);

// Reads srun's messages: "srun: error: node1: task 3: Killed" or "... Exited with exit code 7". srun reports every task
// that failed, including those that stopped because of another. The result has `rank` if it is among them, else the
// first.
JobWords read_srun_words(const std::string& text, int rank = -1);

// The program that is started. A plain value.
struct Job {
  std::string name;  // "mpirun"; its standard error goes to logs/mpirun.log
  std::vector<std::string> command;
  rank::Variables variables;       // besides those of this process
  std::vector<std::string> unset;  // variables of this process that the job does not get
};

// The end of the job, as far as the launcher can see it.
struct JobEnd {
  ExitStatus status;
  std::string errors;                       // the end of its standard error
  std::optional<rank::ErrorMessage> error;  // the report of a rank, or the rank that left without one
  int joined = 0;                           // ranks that joined
  bool finished = false;                    // every rank finished, or stopped as requested
  bool was_killed = false;                  // the job itself, by a signal that dtrain did not send
  ExitCode exit_code = ExitCode::kDone;     // of the ranks, if `finished`
  int interrupts = 0;
  Interrupt interrupt;                            // the first one; nothing: none
  std::map<std::string, rank::HostReport> hosts;  // by agent
};

// Reads one output of a child process line by line, without blocking.
class OutputPipe {
 public:
  // Makes the pipe and returns its write end, for the child. SystemError.
  UniqueFd open();
  int fd() const { return fd_.get(); }  // readable when there is output; -1: the output has ended
  // Passes on the lines that have arrived, without newlines; at the end of the output also an incomplete last line.
  void read(const std::function<void(const std::string& line)>& on_line);

 private:
  UniqueFd fd_;
  std::string partial_;  // an incomplete line
};

// The launcher's side of the links to ranks that mpirun or srun starts (PlaneLink). One thread.
class RankPlane {
 public:
  // Listens on that address of this host. CommError if it cannot.
  RankPlane(const std::string& address, const rank::LaunchOrders& orders, const Logger& log);

  // Returns the address and secrets by which the ranks reach the plane.
  const rank::LauncherContact& contact() const { return contact_; }

  // Returns the newest progress; empty if there was none since the last call.
  std::optional<rank::Progress> take_progress();
  int joined();         // number of ranks that have joined
  bool all_finished();  // trained to the end, or stopped as requested
  bool finished(int rank) const { return finished_.count(rank) != 0; }
  bool any_connected() const;  // a rank that has joined is there
  // Returns the highest exit code of the ranks that have finished: not 0 if the run was stopped.
  ExitCode exit_code() const { return exit_code_; }
  std::map<std::string, rank::HostReport> hosts();  // by agent
  // Where the ranks go on, as rank 0 tells (memory_choice_message()); empty: it has not told yet.
  std::optional<Json> memory_choice();

  // Returns the reason why the run must end: the first error that a rank reported. If a rank is gone without a report,
  // `rank` names it, `departure` is how it left, and `cause` is empty.
  std::optional<rank::ErrorMessage> error();
  // Asks every rank to stop after its step.
  void stop(int signal);
  // After all_finished(): ends the plane in good order, so that the ranks may end.
  void finish();

 private:
  std::optional<std::string> look(const std::string& key);
  void read_states();

  int ranks_;
  rank::LaunchOrders orders_;
  rank::LauncherContact contact_;
  std::unique_ptr<comm::ControlPlane> plane_;
  std::string last_progress_;
  std::map<int, bool> joined_;
  std::map<int, bool> finished_;
  ExitCode exit_code_ = ExitCode::kDone;
  bool stopping_ = false;
};

class JobRanks final : public WatchedRanks {
 public:
  // Starts the job. SystemError when it cannot be started.
  JobRanks(const Attempt& attempt, RankPlane& plane, const Job& job);
  // Returns how the job ended. Called once the watcher has seen its end.
  JobEnd end();

  void add_descriptors(std::vector<pollfd>& descriptors) const override;
  void take(bool last) override;
  void judge() override;
  void interrupt(const Interrupt& interrupt) override;
  void end_what_hangs() override;
  bool all_joined() const override { return end_.joined == attempt_.placed.world_size(); }
  bool has_failed() const override { return end_.error.has_value(); }
  bool all_ended() const override { return ended_; }

 private:
  Process start(const Job& job);
  void end_within(const Patience& patience);
  void judge_ends();
  void take_memory_choice();
  void keep(const std::string& line);

  const Attempt& attempt_;
  RankPlane& plane_;
  std::optional<LineAppender> log_;  // start() opens it
  bool log_is_torn_ = false;
  OutputPipe out_;
  OutputPipe errors_;
  Process process_;
  JobEnd end_;
  std::set<int> ended_ranks_;  // those that have failed, as `dtrain start-rank` says
  bool all_ended_ = false;     // every rank has failed or finished
  bool told_of_memory_ = false;
  bool ended_ = false;
  Patience patience_ = kPatienceWithJob;
  std::optional<Nanoseconds> hangs_since_;
  std::optional<Nanoseconds> job_ended_;  // the job itself
  HangingProcess hanging_;
};

// Starts the job and watches it until it has ended.
JobEnd watch_job(const Attempt& attempt, RankPlane& plane, const Job& job);

// Derives the outcome, with a cause that names rank and host, from the reports of the job's ranks and the messages of
// mpirun or srun. Reads log files. `name` is "mpirun" or "srun". If no rank joined and none reported an error,
// run_mpi() looks for the cause on the hosts (RemoteHosts::find_fault()) and adds the remedy.
Outcome judge_job(const PlacedLaunch& placed, const rank::RunFolder& folder, const JobEnd& end, const JobWords& words,
                  const std::string& name);

// The file that proves that a process belongs to a launch by mpirun or srun; each rank reads it when it starts.
// Its content: "<secret>.<ranks_secret>".
std::string to_text(const rank::LaunchSecrets& secrets);

// Makes the file, mode 0600, in place of one that a killed launcher left. The destructor removes it. SystemError.
class SecretFile {
 public:
  SecretFile(std::filesystem::path path, const rank::LaunchSecrets& secrets);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Commands on the other hosts of a run, over the remote shell that mpirun uses (ssh): they find the fault of a host,
// hand out the secret, and collect the host's files. They block for a bounded time; one thread.

class RemoteHosts {
 public:
  explicit RemoteHosts(std::vector<std::string> shell) : shell_(std::move(shell)) {}

  // After a job in which no rank joined: names the first host that cannot be reached, or that lacks Open MPI, dtrain,
  // the program or the experiment file. Empty: no host lacks any of them.
  std::optional<Failure> find_fault(const PlacedLaunch& placed, const std::vector<std::string>& needed_files) const;

  // Writes a file that only the user can read on every host of the plan except this one. The text goes over the shell's
  // standard input, so that it is in no command line and no variable. Returns one line for each host that failed.
  std::vector<std::string> hand_out(const PlacedLaunch& placed, const std::filesystem::path& file,
                                    const std::string& text) const;
  // Removes that file from the hosts.
  void take_back(const PlacedLaunch& placed, const std::filesystem::path& file) const;
  // The command that runs a script on a host.
  std::vector<std::string> command(const std::string& host, const std::string& script) const;
  // Removes folders there.
  void remove(const PlacedLaunch& placed, const std::vector<std::string>& folders) const;

  // Moves the files of a host's own folder to the launcher's folder, once the host's monitor has ended. The
  // files belong to the launching user, without special modes, and none is written outside the folder. Error names the
  // missing files and where they still are. Returns the files left out of a successful collection; usually none.
  std::string collect(const std::string& host, const rank::HostReport& report, const rank::RunFolder& folder) const;

 private:
  struct Answer {
    bool came = false;  // the script ran there and returned 0
    std::string said;   // its standard error, on one line
  };
  Answer ask(const std::string& host, const std::string& script, int output, std::chrono::milliseconds patience,
             const std::string& input = {}) const;
  // Runs the script on every host of the plan except this one, several at a time.
  std::vector<std::pair<std::string, Answer>> ask_all(const PlacedLaunch& placed, const std::string& script,
                                                      const std::string& input) const;

  std::vector<std::string> shell_;
};

// Before an attempt: waits until every other host of the run answers, for communication.timeout
// at most. Returns the end of the run if one does not, or if the launch is asked to stop meanwhile.
std::optional<Outcome> await_hosts(const Attempt& attempt, const RemoteHosts& hosts);

}  // namespace dtrain::launcher
