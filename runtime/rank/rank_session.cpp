// The training and the end of a rank. rank_start.cpp has its start.
#include "dtrain/rank/rank_session.h"

#include <chrono>

#include "compare_ranks.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/rank/launcher_duties.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/stop_requests.h"
#include "failure_report.h"
#include "membership.h"
#include "rank_output.h"
#include "rank_start.h"
#include "run_memory.h"

namespace dtrain::rank {
namespace {

// Ranks that do not wait for each other may end at very different times, so this wait has no deadline. If a rank is
// lost, an error of the control plane ends the wait.
void wait_for_all(comm::ControlPlane& control) {
  constexpr std::chrono::seconds kPeriod{1};
  const auto key = [](int rank) { return "run.ended-alone." + std::to_string(rank); };
  control.set(key(control.world().rank), "1");
  for (int rank = 0; rank < control.world().size; ++rank) {
    while (!control.get_within(key(rank), kPeriod)) {
    }
  }
}

}  // namespace

// The parts that watch and report are destroyed last, so that a part that hangs in its destructor is still ended and
// reported. The exit deadlines outlive the control plane, the launcher's link and the MPI job, whose threads use them.
// The report's timer stops first, because its thread uses every other part.
RankSession::~RankSession() {
  failure_report_->stop_timer();
  signals_.reset();
  if (membership_) membership_->release_communicators();
}

const config::Experiment& RankSession::experiment() const {
  return assignment_->experiment;
}
const Mock& RankSession::mock() const {
  return identity_->options.mock;
}
bool RankSession::evaluates() const {
  return identity_->options.evaluates;
}
const std::filesystem::path& RankSession::predictions() const {
  return identity_->options.predictions;
}
const std::filesystem::path& RankSession::orders() const {
  return identity_->options.orders;
}
const comm::World& RankSession::world() const {
  return membership_->world();
}
std::optional<int> RankSession::gpu() const {
  return gpus_->cuda_index;
}

std::string RankSession::gpu_name() const {
  const auto rank = static_cast<std::size_t>(world().rank);
  return rank < gpus_->ranks.size() && gpus_->ranks[rank] ? gpus_->ranks[rank]->name : "";
}
comm::ControlPlane& RankSession::control() {
  return membership_->control();
}
comm::Communicator& RankSession::communicator() {
  return membership_->communicator();
}
void RankSession::make_device_communicator(const comm::NcclOptions& options) {
  membership_->make_device_communicator(options, {.timeout = experiment().communication_timeout, .log = log_});
}
comm::Communicator& RankSession::device_communicator() {
  return membership_->device_communicator();
}
profile::Recorder& RankSession::recorder() {
  return recording_->recorder();
}
const Clock& RankSession::clock() const {
  return clock_;
}
const Logger& RankSession::log() const {
  return log_;
}
// Once the folder is gone, the files of the run's end go to the substitute.
const std::filesystem::path& RankSession::run_dir() const {
  return files_->watch.gone().empty() ? files_->folder.path : files_->watch.substitute();
}
const LogicalRanks& RankSession::logical() const {
  return assignment_->logical;
}

void RankSession::act_as(int logical_rank) {
  assignment_->logical.current = logical_rank;
}

std::int64_t RankSession::batch_per_rank() const {
  return assignment_->split.per_slot;
}

void RankSession::use_global_batch_size(std::int64_t samples) {
  assignment_->split = config::split_batch(samples, experiment().parts_of_batch(world().size));
  assignment_->experiment.global_batch_size = samples;
  if (world().rank != 0) return;
  update_plan("global_batch_size", samples);
  update_plan("effective_batch_size",
              assignment_->split.effective * assignment_->experiment.optimizations.aggregation_frequency);
  update_plan("batch_per_rank", std::vector<std::int64_t>(static_cast<std::size_t>(world().size), batch_per_rank()));
}

std::string RankSession::address() const {
  return membership_->address().empty() ? "127.0.0.1" : membership_->address();
}

std::filesystem::path RankSession::cache_folder() const {
  return rank::cache_folder(process_variables());
}

std::filesystem::path RankSession::resume_from() const {
  const RankEnvironment& environment = identity_->environment;
  return environment.handover ? environment.handover->resume_from : files_->resume_from;
}

std::filesystem::path RankSession::checkpoint_folder() const {
  return checkpoints::storage_of_run(files_->folder.path);
}

const RunMemory& RankSession::memory() const {
  return files_->memory;
}

void RankSession::tell_of_saving() {
  if (launcher_) launcher_->link().send({{"type", "saving"}});
}

SharedMemory RankSession::share_on_host(const std::string& name, const std::function<SharedMemory()>& make,
                                        comm::HostAccess access) {
  return comm::share_on_host(control(), name, make, hosts_->ranks_here(), access);
}

SharedMemory RankSession::keep_on_host(const std::string& name, const std::function<SharedMemory()>& make) {
  return share_on_host(name, [&] {
    const auto& handover = identity_->environment.handover;
    if (handover && handover->kept_memory.contains(name)) {
      return SharedMemory::map(duplicate(handover->kept_memory.at(name)), /*writable=*/false);
    }
    SharedMemory memory = make();
    if (launcher_ && memory.fd() >= 0) launcher_->link().keep_memory(name, memory.fd());
    return memory;
  });
}

bool RankSession::stop_requested() const {
  return stops_->requested();
}

std::string RankSession::stop_reason() const {
  return stops_->reason();
}

std::optional<int> RankSession::take_trace_request() {
  return TraceSignal::take();
}

void RankSession::report_progress(const Progress& progress) {
  if (progress_) progress_->report(progress);
}

void RankSession::write_metrics(const Json& line) {
  if (files_->metrics) files_->metrics->write(line);
  if (files_->tensorboard) files_->tensorboard->add_metrics(line);
}

void RankSession::begin_events(std::int64_t batches) {
  if (files_->tensorboard) files_->tensorboard->begin_after(batches);
}

void RankSession::write_picture(const std::string& name, std::int64_t batch, profile::Picture picture) {
  if (files_->tensorboard) files_->tensorboard->add(name, batch, std::move(picture));
}

void RankSession::write_histogram(const std::string& name, std::int64_t batch, std::vector<float> values) {
  if (files_->tensorboard) files_->tensorboard->add(name, batch, std::move(values));
}

std::int64_t RankSession::metrics_bytes() const {
  return files_->metrics ? files_->metrics->bytes() : 0;
}

void RankSession::cut_metrics(std::int64_t bytes, std::int64_t batches) {
  if (files_->metrics) files_->metrics->cut(bytes);
  begin_events(batches);
}

void RankSession::write_event(const std::string& event, const Json& fields) {
  files_->events.write(event, fields);
}

void RankSession::update_plan(const std::string& key, const Json& value) {
  if (!identity_->is_rank_0()) return;
  try {
    update_plan_file(files_->folder.plan(), key, value);
  } catch (const Error&) {
    if (files_->watch.gone().empty()) throw;  // else finish() says it
  }
}

void RankSession::set_step(std::int64_t batch) {
  failure_report_->set_step(batch);
  control().set_step(batch);
  recording_->check();
  if (identity_->is_rank_0()) files_->look_for_folder(clock_, log_);
}

int RankSession::finish(bool stopped, bool saved) {
  try {
    recording_->finish();
    recording_->report_losses();
    if (files_->metrics) files_->metrics->report_losses(files_->events);
    if (files_->tensorboard) {
      const std::int64_t lost = files_->tensorboard->finish();
      if (lost > 0) files_->events.try_write("tensorboard_events_lost", {{"count", lost}});
    }
    // Another rank may have seen the launcher's end first, and has made this one stop.
    if (stopped && launcher_ && launcher_->link().is_gone()) on_launcher_end();
    const StopOutcome stop = stopped ? agree_on_stop(saved) : StopOutcome{};
    const std::string gone = identity_->is_rank_0() ? files_->watch.gone() : "";
    if (!gone.empty()) throw Error(files_->watch.error(gone));
    Json fields = {{"exit_code", stop.code}, {"step", failure_report_->step()}};
    if (stopped) fields["stopped"] = stop.reason;
    files_->events.try_write("rank_finished", fields);
    if (launcher_) launcher_->link().send(state_message("finished", stop.code));
    if (mock().alone()) wait_for_all(control());
    control().barrier("run.finished");  // now the records of every rank are on disk
    membership_->finish();
    if (launcher_) launcher_->link().leave();
    if (files_->output) show_end(stop);
    if (membership_->mpi()) membership_->mpi()->succeed();
    failure_report_->close();  // not earlier: an error in the lines above is reported like any other
    const bool in_job = launcher_ && launcher_->plane();
    // Nobody goes on from the states in memory: the run is complete, or has a checkpoint of this batch.
    if (in_job && (saved || !stopped)) remove_memory(files_->memory, world());
    // mpirun and srun take any exit code but 0 for a failure and print a long report. A launcher that is gone hears
    // nothing.
    return in_job && stopped ? 0 : static_cast<int>(stop.code);
  } catch (const std::exception& error) {
    return fail(error);
  }
}

// A rank that got no signal itself has no reason of its own, so the ranks compare theirs. Ranks that do not exchange
// anything (--mock comm) end by themselves.
StopOutcome RankSession::agree_on_stop(bool saved) {
  const Json mine = {{"reason", stop_reason()}, {"launcher_ended", stops_->launcher_has_ended()}, {"saved", saved}};
  const std::vector<std::string> all =
      mock().alone() ? std::vector{to_line(mine)} : control().gather("run.stop", to_line(mine));
  StopOutcome outcome{.code = ExitCode::kPreempted, .reason = {}};
  bool interrupted = false;
  bool launcher_ended = false;
  for (const std::string& line : all) {
    const Json theirs = Json::parse(line);
    const std::string reason = theirs.at("reason");
    if (outcome.reason.empty() || outcome.reason == StopRequests::kPaused) {
      outcome.reason = reason.empty() ? outcome.reason : reason;
    }
    interrupted |= reason == "SIGINT" || !theirs.at("saved").get<bool>();
    launcher_ended |= theirs.at("launcher_ended").get<bool>();
  }
  if (interrupted) outcome.code = ExitCode::kInterrupted;
  if (launcher_ended) outcome.code = ExitCode::kRunFailed;
  return outcome;
}

void RankSession::begin_last_save() {
  deadlines_->give_time_to_save();
}

// Without a launcher rank 0 prints the summary.
void RankSession::show_end(const StopOutcome& stop) {
  LogRedirect& output = *files_->output;
  output.screen().end_progress();
  output.stop_copying();
  const bool goes_on = stop.reason == StopRequests::kPaused && stop.code != ExitCode::kRunFailed;
  if (!identity_->is_rank_0() || identity_->environment.is_launched() || goes_on) return;
  files_->events.write("run_ended", run_ended(stop.code, ""));
  if (files_->status) files_->status->end(stop.code == ExitCode::kDone);
  // Under mpirun rank 0 has a terminal whose output may end in a file: plain text there.
  const int screen = identity_->environment.started_by == "nothing" ? output.output() : -1;
  const EndReport report = launcher_duties().end_report(run_dir());
  if (!report.warning.empty()) output.original_error(report.warning);
  output.original_output(launcher_duties().summary_text(run_dir(), screen) + "\n" + report.text + "written to " +
                         run_dir().string() + "\n");
}

int RankSession::fail(const std::exception& error) {
  // Without its folder a run fails in ways that say nothing of it, such as a last checkpoint that cannot be written.
  const std::string gone = dynamic_cast<const CommError*>(&error) ? "" : files_->watch.gone();
  if (gone.empty()) {
    failure_report_->report(error);
  } else {
    const std::string text = files_->watch.error(gone);
    const std::string more = describe(error) == text ? "" : "\n  " + describe(error);
    failure_report_->report(Error(text + more));
  }
  recording_->flush_after_failure();
  if (is_replaced() && files_->tensorboard) files_->tensorboard->finish();
  return static_cast<int>(ExitCode::kRunFailed);
}

bool RankSession::is_replaced() const {
  return identity_->environment.is_launched() && failure_report_->follows();
}

void RankSession::on_launcher_end() {
  if (!stops_->launcher_ends(launcher_->name())) return;
  const std::string cause = launcher_->name() + " is gone; this rank stops";
  log_->error("{}", cause);
  files_->events.try_write("launcher_gone", {{"cause", cause}});
  deadlines_->after_launcher_end();
}

void RankSession::on_rank_failure(const comm::RankFailure& failure) {
  const bool has_mpi = membership_->mpi() != nullptr;
  if (has_mpi && failure.departure == comm::Departure::kSilent) {
    // The launcher would hear only that this rank is gone.
    if (launcher_) {
      launcher_->link().send(to_json(
          ErrorMessage{.primary = false, .departure = failure.departure, .rank = failure.rank, .step = failure.step}));
    }
    return deadlines_->after_host_silence(failure.cause);
  }
  if (has_mpi && identity_->is_rank_0() && !identity_->environment.is_launched()) {
    failure_report_->report_before_mpirun_kills(failure);
  }
  deadlines_->after_rank_failure();
}

}  // namespace dtrain::rank
