#include "launch/job_ranks.h"

#include <array>
#include <csignal>
#include <cstring>
#include <regex>

#include <fcntl.h>
#include <unistd.h>

#include "commands/kept_rank.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/rank/screen.h"
#include "dtrain/scheduler/rank_mark.h"
#include "launch/job_memory.h"
#include "launch/recoveries.h"

namespace dtrain::launcher {
namespace {

// Returns the signal whose strsignal() text begins `name`, as in srun's messages; 0: none.
int signal_called(const std::string& name) {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (const char* text = ::sigdescr_np(signal); text && name.rfind(text, 0) == 0) return signal;
  }
  return 0;
}

}  // namespace

JobWords read_mpirun_words(const std::string& text, int rank) {
  const std::string words = std::regex_replace(text, std::regex("\\s+"), " ");
  JobWords result;
  for (const std::string& line : split(text, '\n')) {
    const auto ended = read_end_of_rank(line);
    if (!ended || (result.first && result.first->rank == rank)) continue;
    const bool is_better =
        !result.first || ended->rank == rank || (result.first->signal == 0 && ended->status.signal != 0);
    if (is_better) result.first = EndOfRank{ended->rank, ended->status.signal, ended->status.code};
  }
  std::smatch found;
  if (result.first) {
    // nothing says more
  } else if (std::regex_search(
                 words, found,
                 std::regex("process rank ([0-9]+) with PID [0-9]+ on node [^ ]+ exited on signal ([0-9]+)"))) {
    result.first = EndOfRank{.rank = std::stoi(found[1]), .signal = std::stoi(found[2])};
  } else if (std::regex_search(words, found,
                               std::regex("Process name: \\[\\[[0-9]+,[0-9]+\\],([0-9]+)\\] Exit code: ([0-9]+)"))) {
    result.first = EndOfRank{.rank = std::stoi(found[1]), .code = std::stoi(found[2])};
  }
  if (std::regex_search(words, found, std::regex("Remote daemon: \\[\\[[0-9]+,[0-9]+\\],[0-9]+\\] on node ([^ ]+)"))) {
    result.lost_host = found[1];
  }
  return result;
}

JobWords read_srun_words(const std::string& text, int rank) {
  JobWords result;
  std::smatch found;
  const std::regex task("srun: error: [^ ]+: tasks? ([0-9]+)[-,0-9]*: ([^\\n]+)");
  for (std::sregex_iterator each(text.begin(), text.end(), task), end; each != end; ++each) {
    const std::string how = (*each)[2];
    EndOfRank failed{.rank = std::stoi((*each)[1])};
    std::smatch code;
    if (std::regex_search(how, code, std::regex("Exited with exit code ([0-9]+)"))) {
      failed.code = std::stoi(code[1]);
    } else if ((failed.signal = signal_called(how)) == 0) {
      continue;
    }
    if (!result.first || failed.rank == rank) result.first = failed;
  }
  if (std::regex_search(text, found, std::regex("Node failure on ([^ \\n]+)"))) result.lost_host = found[1];
  return result;
}

namespace {

constexpr std::size_t kErrorsKept = 64 * 1024;
constexpr std::size_t kFailureLines = 15;
// mpirun still passes on what they have printed.
constexpr Patience kPatienceWithEnded{std::chrono::milliseconds(100), std::chrono::seconds(5)};
// mpirun would wait for its daemon there.
constexpr Patience kPatienceOfJobWithoutHost{std::chrono::milliseconds(100), std::chrono::milliseconds(600)};
constexpr std::chrono::seconds kRanksFollow{8};  // they end once their mpirun is gone

constexpr const char* kWhoKills =
    "dtrain did not send this signal: another process did, or the host or the rank's cgroup had no memory left (see "
    "dmesg on that host)";

std::string host_of(const PlacedLaunch& placed, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  return rank >= 0 && index < placed.ranks.size() ? placed.ranks[index].host : std::string();
}

// "rank 1 on nodeb"
std::string name_of(const PlacedLaunch& placed, int rank) {
  const std::string host = host_of(placed, rank);
  return "rank " + std::to_string(rank) + (host.empty() ? "" : " on " + host);
}

Failure lost_host(const PlacedLaunch& placed, const std::string& host, int rank, const std::string& how) {
  std::vector<std::string> ranks;
  for (const rank::RankPlacement& place : placed.ranks) {
    if (place.host == host) ranks.push_back(std::to_string(place.rank));
  }
  return {.rank = rank,
          .cause = "host " + host + " is lost, with rank " + join(ranks, ", ") + ": " + how,
          .remedy = "check that the host runs and that its network works",
          .may_pass = true,
          .lost_host = true};
}

Failure ended(const PlacedLaunch& placed, const EndOfRank& end, bool joined) {
  const std::string who = name_of(placed, end.rank);
  if (end.signal != 0) {
    return {.rank = end.rank,
            .cause = who + " was " + ExitStatus{0, end.signal}.describe(),
            .remedy = end.signal == SIGKILL ? kWhoKills : "",
            .may_pass = true};
  }
  const std::string when = joined ? " ended before the run was over: " : " ended before it joined the run: ";
  return {.rank = end.rank, .cause = who + when + ExitStatus{end.code, 0}.describe()};
}

Failure why(const PlacedLaunch& placed, const JobEnd& end, const JobWords& words, const std::string& name) {
  const int rank = end.error ? end.error->rank : -1;
  if (end.error && comm::is_reported(end.error->departure)) {
    return reported_failure(name_of(placed, rank), rank, *end.error);
  }
  if (end.was_killed) {
    return {.cause = name + " was " + end.status.describe(), .remedy = kWhoKills, .may_pass = true};
  }
  if (end.error && end.error->departure == comm::Departure::kSilent) {
    return lost_host(placed, host_of(placed, rank), rank, "it has not answered for some seconds");
  }
  const bool by_signal = words.first && words.first->signal != 0 && words.first->rank == rank;
  if (!words.lost_host.empty() && (!by_signal || host_of(placed, rank) == words.lost_host)) {
    return lost_host(placed, words.lost_host, rank, name + "'s daemon there is gone");
  }
  if (words.first) return ended(placed, *words.first, end.joined > 0);
  if (end.error) {
    return {.rank = rank, .cause = name_of(placed, rank) + " is gone: its connection has ended", .may_pass = true};
  }
  const std::string when =
      end.joined == 0 ? " ended before any rank joined the run: " : " ended before the run was over: ";
  return {.cause = name + when + end.status.describe()};
}

// Adds the last lines of the failed rank's log, or those of mpirun or srun if no rank joined.
void add_lines(Failure& failure, const rank::RunFolder& folder, const JobEnd& end, const std::string& name) {
  if (failure.rank >= 0) {
    failure.lines = log_lines(folder, failure.rank, end.error ? end.error->cause : std::string());
    return;
  }
  if (end.error || end.joined > 0) return;
  failure.said_by = name;
  for (const std::string& line : rank::last_lines(folder.logs() / (name + ".log"), kFailureLines)) {
    if (!line.empty() && line.find_first_not_of('-') != std::string::npos) failure.lines.push_back(line);
  }
}

}  // namespace

UniqueFd OutputPipe::open() {
  Pipe pipe = make_pipe();
  fd_ = std::move(pipe.reader);
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  return std::move(pipe.writer);
}

void OutputPipe::read(const std::function<void(const std::string& line)>& on_line) {
  std::array<char, 16 * 1024> buffer{};
  while (fd_) {
    const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0) return;  // no more output now
    if (count == 0) {
      if (!partial_.empty()) on_line(partial_);
      partial_.clear();
      fd_.reset();
      return;
    }
    partial_.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      on_line(partial_.substr(begin, end - begin));
    }
    partial_.erase(0, begin);
  }
}

RankPlane::RankPlane(const std::string& address, const rank::LaunchOrders& orders, const Logger& log)
    : ranks_(static_cast<int>(orders.agents.size())), orders_(orders) {
  contact_ = {.address = address, .secrets = {.launch = random_hex(32), .ranks = random_hex(32)}};
  comm::ControlEndpoint bound;
  plane_ = comm::ControlPlane::serve(rank::plane_options(contact_.secrets.launch, 0, ranks_, {}, log),
                                     {.address = address}, &bound);
  contact_.port = bound.port;
  rank::put_orders(*plane_, orders_);
}

std::optional<std::string> RankPlane::look(const std::string& key) {
  try {
    return plane_->get_within(key, std::chrono::milliseconds(0));
  } catch (const CommError&) {  // the run has failed, and the key is not set
    return std::nullopt;
  }
}

std::optional<rank::Progress> RankPlane::take_progress() {
  const auto text = look(rank::plane_key::kProgress);
  if (!text || *text == last_progress_) return std::nullopt;
  last_progress_ = *text;
  return rank::progress_of(Json::parse(*text));
}

void RankPlane::read_states() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (finished_.count(rank) != 0) continue;
    const auto text = look(rank::plane_key::state(rank));
    if (!text) continue;
    joined_[rank] = true;
    const Json state = Json::parse(*text);
    if (state.value("state", std::string()) != "finished") continue;
    finished_[rank] = true;
    exit_code_ = std::max(exit_code_, state.value("exit_code", ExitCode::kDone));
  }
}

int RankPlane::joined() {
  read_states();
  return static_cast<int>(joined_.size());
}

bool RankPlane::any_connected() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const comm::PeerState state = plane_->peer_state(rank + 1);
    if (state == comm::PeerState::kAlive || state == comm::PeerState::kLate) return true;
  }
  return false;
}

bool RankPlane::all_finished() {
  read_states();
  return static_cast<int>(finished_.size()) == ranks_;
}

std::map<std::string, rank::HostReport> RankPlane::hosts() {
  std::map<std::string, rank::HostReport> result;
  for (const std::string& agent : std::set<std::string>(orders_.agents.begin(), orders_.agents.end())) {
    if (const auto text = look(rank::plane_key::host(agent))) result[agent] = rank::host_report_of(Json::parse(*text));
  }
  return result;
}

std::optional<Json> RankPlane::memory_choice() {
  const auto text = look(rank::plane_key::kMemory);
  return text ? std::optional(Json::parse(*text)) : std::nullopt;
}

std::optional<rank::ErrorMessage> RankPlane::error() {
  const auto failure = plane_->failure();
  if (!failure || failure->rank == 0) return std::nullopt;
  const Json said = Json::parse(failure->cause, nullptr, false);
  if (said.is_object()) return rank::error_of(said);
  return rank::ErrorMessage{.departure = failure->departure, .rank = failure->rank - 1, .step = failure->step};
}

void RankPlane::stop(int signal) {
  if (std::exchange(stopping_, true)) return;
  plane_->fail({0, -1, to_line({{"signal", signal}})});
}

void RankPlane::finish() {
  if (!plane_->failure()) plane_->finish();
}

JobRanks::JobRanks(const Attempt& attempt, RankPlane& plane, const Job& job)
    : attempt_(attempt), plane_(plane), process_(start(job)) {
  attempt_.task.add_process(job.name, process_.pid());
  attempt_.events.write(job.name + "_started", {{"pid", process_.pid()}, {"command", job.command}});
}

Process JobRanks::start(const Job& job) {
  const std::filesystem::path log = attempt_.folder.logs() / (job.name + ".log");
  log_.emplace(log);  // the launch fails if its log cannot be opened
  const UniqueFd out = out_.open();
  const UniqueFd errors = errors_.open();
  const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions options;
  options.command = job.command;
  options.environment = job.variables;
  // The mark identifies the ranks if this process is killed before it has recorded them.
  options.environment[scheduler::kRankMark] = scheduler::rank_mark(::getpid());
  options.unset = job.unset;
  options.fds = {{0, in.get()}, {1, out.get()}, {2, errors.get()}};
  return Process::start(options);
}

JobEnd JobRanks::end() {
  end_.hosts = plane_.hosts();
  return end_;
}

void JobRanks::add_descriptors(std::vector<pollfd>& descriptors) const {
  if (!job_ended_) descriptors.push_back({process_.pidfd(), POLLIN, 0});
  for (const OutputPipe* output : {&out_, &errors_}) {
    if (output->fd() >= 0) descriptors.push_back({output->fd(), POLLIN, 0});
  }
}

void JobRanks::take_memory_choice() {
  if (!attempt_.job_memory || told_of_memory_) return;
  const auto told = plane_.memory_choice();
  if (!told) return;
  told_of_memory_ = true;
  const std::int64_t batch = attempt_.job_memory->take(*told);
  if (attempt_.recoveries) attempt_.recoveries->goes_on_from(batch);
}

void JobRanks::take(bool) {
  out_.read([this](const std::string& line) { attempt_.screen.line(line); });
  errors_.read([this](const std::string& line) {
    keep(line);
    if (const auto ended = read_end_of_rank(line)) ended_ranks_.insert(ended->rank);
    end_.errors += line + "\n";
    if (end_.errors.size() > 2 * kErrorsKept) end_.errors.erase(0, kErrorsKept);
  });
  if (const auto progress = plane_.take_progress()) attempt_.take(*progress);
  end_.joined = plane_.joined();
  take_memory_choice();
  if (ended_) return;
  const Nanoseconds now = attempt_.clock.monotonic();
  if (const auto status = process_.wait(std::chrono::milliseconds(0)); status && !job_ended_) {
    job_ended_ = now;
    end_.status = *status;
    end_.was_killed = status->signal != 0 && !end_.finished && end_.interrupts == 0 && !hanging_.has_begun();
  }
  // Ranks of an attempt must not meet those of the next one.
  ended_ = job_ended_ && (!end_.was_killed || !plane_.any_connected() || now - *job_ended_ > kRanksFollow);
}

// A rank has failed while its `dtrain start-rank` lives on. The others report and save; then the job is over. One that
// has not heard of the failure, as it does where a rank dies before all have joined, does not end by itself.
void JobRanks::judge_ends() {
  if (ended_ranks_.empty()) return;
  const bool is_silent = end_.error && end_.error->departure == comm::Departure::kSilent;
  const std::string silent_host = is_silent ? host_of(attempt_.placed, end_.error->rank) : std::string();
  int left = 0;
  for (const rank::RankPlacement& rank : attempt_.placed.ranks) {
    left += !ended_ranks_.contains(rank.rank) && !plane_.finished(rank.rank) && rank.host != silent_host;
  }
  if (left == 0) {
    if (!std::exchange(all_ended_, true)) end_within(is_silent ? kPatienceOfJobWithoutHost : kPatienceWithEnded);
  } else if (!hangs_since_) {
    end_within(all_joined() ? kPatienceWithRank : kPatienceWithStartingRank);
  }
}

void JobRanks::judge() {
  if (!end_.error && (end_.error = plane_.error())) {
    attempt_.task.enter(scheduler::TaskState::kStopping, end_.error->cause);
    const bool is_silent = end_.error->departure == comm::Departure::kSilent;
    if (!all_ended_) end_within(is_silent ? kPatienceWithSilentHost : end_.finished ? patience_ : kPatienceWithJob);
  }
  judge_ends();
  if (end_.finished || !plane_.all_finished()) return;
  end_.finished = true;
  end_.exit_code = plane_.exit_code();
  try {
    plane_.finish();
  } catch (const CommError&) {
    // A rank died while it ended; its exit code shows that.
  }
  end_within(kPatienceAfterFinish);
}

void JobRanks::end_within(const Patience& patience) {
  hangs_since_ = attempt_.clock.monotonic();
  patience_ = patience;
}

void JobRanks::interrupt(const Interrupt& interrupt) {
  end_.interrupts = interrupt.count;
  if (interrupt.count == 1) end_.interrupt = interrupt;
  if (interrupt.count == 1 && plane_.joined() > 0) {
    attempt_.screen.line(stopping_line(interrupt));
    if (!interrupt.repeats) plane_.stop(interrupt.signal);
  } else {
    attempt_.screen.line("dtrain: " + interrupt.why + ": killing the ranks");
    process_.kill(SIGTERM);
    hangs_since_ = attempt_.clock.monotonic();
  }
}

void JobRanks::end_what_hangs() {
  if (job_ended_ || !hangs_since_) return;
  hanging_.end(process_, attempt_.clock.monotonic() - *hangs_since_, patience_);
}

// A full disk does not end the launch: the outcome does not depend on this log.
void JobRanks::keep(const std::string& line) {
  try {
    log_->append(line + "\n");
  } catch (const SystemError& error) {
    if (!std::exchange(log_is_torn_, true)) attempt_.screen.line("dtrain: warning: " + describe(error));
  }
}

JobEnd watch_job(const Attempt& attempt, RankPlane& plane, const Job& job) {
  JobRanks ranks(attempt, plane, job);
  watch_ranks(attempt, ranks);
  return ranks.end();
}

Outcome judge_job(const PlacedLaunch& placed, const rank::RunFolder& folder, const JobEnd& end, const JobWords& words,
                  const std::string& name) {
  Outcome outcome{.interrupt = end.interrupt};
  if (end.finished) {
    outcome.exit_code = exit_code_of_stop(end.interrupt, end.exit_code);
    if (end.status.success()) return outcome;
  } else if (end.interrupts > 0 && !end.error) {
    outcome.exit_code = ExitCode::kInterrupted;
    return outcome;
  }
  outcome.exit_code = ExitCode::kRunFailed;
  outcome.failure = why(placed, end, words, name);
  add_lines(*outcome.failure, folder, end, name);
  return outcome;
}

}  // namespace dtrain::launcher
