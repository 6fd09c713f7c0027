#include "checkpoint/checkpoints.h"

#include <chrono>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::train {
namespace {

constexpr std::chrono::seconds kWorthTelling{1};
constexpr std::chrono::seconds kPatience{10};      // time before the log says that training waits,
constexpr std::chrono::seconds kLongPatience{60};  // and before it says so again

}  // namespace

Checkpoints::Checkpoints(rank::RankSession& session, TrainingStep& step, const Options& options,
                         std::function<void(StateVisitor&)> visit)
    : session_(session),
      options_(options),
      hosts_(find_checkpoint_hosts(session.control(), session.checkpoint_folder())),
      folder_(session.checkpoint_folder()),
      snapshot_(session, step, hosts_, options.names, std::move(visit)),
      last_time_(session.clock().monotonic()) {}

// A saver is left only after an error: otherwise make_durable() has waited for it.
Checkpoints::~Checkpoints() {
  if (!saver_) return;
  const std::string left = saver_->end(checkpoints::kSaverPatience);
  if (!left.empty()) session_.log()->warn("{}", left);
}

bool Checkpoints::saver_busy() {
  hand_over();
  if (!handed_over_) return true;
  if (!saver_) return false;
  if (auto result = saver_->poll()) take_result(*result);
  return saver_ && saver_->busy();
}

void Checkpoints::make_ready() {
  if (last_) return;  // a checkpoint has been taken already
  snapshot_.reserve();
  memories_ = snapshot_.memories();
  if (hosts_.saves() && hosts_.is_leader()) start_saver();
}

void Checkpoints::prepare() {
  hand_over();
  snapshot_.begin();
}

std::string Checkpoints::wait_for_rank_0(const std::string& key, const std::string& told) {
  constexpr std::chrono::seconds kPeriod{1};
  comm::ControlPlane& control = session_.control();
  if (session_.world().rank == 0) control.set(key, told);
  for (;;) {
    if (auto value = control.get_within(key, kPeriod)) return *value;
  }
}

void Checkpoints::save(const Moment& moment, bool may_wait, bool last) {
  if (last_ && last_->awaits_validation) make_durable();  // no later checkpoint can take its place
  if (!handed_over_) snapshot_.complete_now();
  hand_over();
  wait_for_saver();
  // A slow disk may need longer than ranks wait for each other in a collective.
  if (may_wait) wait_for_rank_0("train/checkpoint-begin-" + std::to_string(++awaited_));
  result_.reset();
  last_ = moment;
  is_last_ = last;
  is_second_try_ = false;
  // The next update may come only after the validation, and a model that spoils the copies would leave none to
  // evaluate.
  snapshot_.take(/*at_update=*/!last && !moment.awaits_validation);
  last_time_ = session_.clock().monotonic();
  if (std::exchange(memories_, snapshot_.memories()) != snapshot_.memories()) saver_.reset();
  handed_over_ = false;
  hand_over();
}

void Checkpoints::wait_for_saver() {
  if (!saver_ || !saver_->busy()) return;
  const Nanoseconds began = session_.clock().monotonic();
  const bool tells = session_.world().rank == 0;
  auto result = saver_->wait(kPatience);
  while (!result && saver_->busy()) {
    if (tells) {
      session_.log()->warn(
          "training waits for the checkpoint of batch {} to be written to {}, for {} so far: is the disk "
          "full, or does its file system not answer?",
          last_->batch, folder_.string(), format_duration(session_.clock().monotonic() - began));
    }
    result = saver_->wait(kLongPatience);
  }
  if (result) take_result(*result);
  const Nanoseconds waited = session_.clock().monotonic() - began;
  if (waited < kWorthTelling || !tells) return;
  session_.log()->warn("training has waited {} for the checkpoint of batch {} to be written to {}",
                       format_duration(waited), last_->batch, folder_.string());
}

void Checkpoints::start_saver() {
  checkpoints::SaverOptions options;
  options.storage = folder_;
  // Later the folder may be gone with its disk: then nothing may be written below the mount point.
  options.makes_storage = !std::exchange(saver_was_started_, true);
  options.host = hosts_.host;
  options.hosts = hosts_.folder_is_shared ? hosts_.hosts : 1;
  const auto& storage = session_.experiment().checkpoint_storage;
  if (options.makes_storage) find_passed_over();
  options.retention = {storage.save_trial_latest, storage.save_trial_best};
  options.log = session_.run_dir() / "logs" / "saver.log";
  saver_ = std::make_unique<checkpoints::Saver>(options, snapshot_.memory());
}

void Checkpoints::find_passed_over() {
  for (const checkpoints::Entry& entry : checkpoints::list(folder_)) {
    if (entry.about.step > resumed_at_) passed_over_.push_back(entry.about.step);
  }
}

void Checkpoints::hand_over() {
  if (handed_over_ || !snapshot_.complete()) return;
  handed_over_ = true;
  if (snapshot_.spoiled() && session_.world().rank == 0) {
    session_.log()->warn(
        "the checkpoint of batch {} is given up, because the model was changed while it was copied; another "
        "one follows",
        last_->batch);
  }
  if (snapshot_.spoiled() || !hosts_.saves() || !hosts_.is_leader()) return;
  checkpoints::SaveRequest request;
  request.number = snapshot_.number();
  request.files = snapshot_.files();
  request.state = snapshot_.values();
  checkpoints::About& about = request.about;
  about.step = last_->batch;
  about.epoch = last_->epoch;
  about.world_size = session_.world().size;
  about.reason = last_->reason;
  about.metric = last_->metric_value ? session_.experiment().searcher.metric : "";
  about.metric_value = last_->metric_value;
  about.awaits_validation = last_->awaits_validation;
  about.smaller_is_better = session_.experiment().searcher.smaller_is_better;
  about.time = to_seconds(snapshot_.taken());
  about.run = options_.run;
  try {
    if (!saver_) start_saver();
    request.passed_over = passed_over_;
    if (session_.world().rank == 0) request.companion = rank::RunFolder{session_.run_dir()}.metrics();
    saver_->save(request);
  } catch (const SystemError& error) {  // training goes on; the checkpoint is tried again later
    checkpoints::SaveResult failed;
    failed.about = about;
    failed.error = describe(error) + (error.remedy().empty() ? "" : "; " + error.remedy());
    snapshot_.memory().mark_free(request.number);
    return take_result(failed);
  }
  if (is_last_) snapshot_.memory().mark_urgent(request.number);  // the run ends when the checkpoint is done
}

void Checkpoints::take_result(const checkpoints::SaveResult& result) {
  result_ = result;
  if (result.error.empty()) {
    std::erase(passed_over_, result.about.step);  // this run's own checkpoint has replaced it
    cost_s_ = snapshot_.copy_seconds() + result.cpu_s;
  } else {
    saver_.reset();  // the next checkpoint starts a new saver
  }
  if (session_.world().rank != 0) return;
  Json event = {{"step", result.about.step}};
  if (!result.error.empty()) {
    session_.log()->error("the checkpoint of batch {} could not be written: {}", result.about.step, result.error);
    event["cause"] = result.error;
    event["retried"] = (is_last_ || last_->awaits_validation) && !is_second_try_;
    return session_.write_event("checkpoint_failed", event);
  }
  event["epoch"] = result.about.epoch;
  event["path"] = result.path.string();
  event["bytes"] = result.bytes;
  event["reason"] = result.about.reason;
  event["copy_s"] = snapshot_.copy_seconds();
  event["wait_s"] = result.wait_s;
  event["write_s"] = result.write_s;
  event["deleted"] = result.deleted;
  if (!result.not_finite.empty()) {
    event["not_finite"] = result.not_finite;
    if (!std::exchange(told_of_not_finite_, true)) {
      session_.log()->warn(
          "the checkpoint of batch {} has values that are not finite ({}); the newest one with finite values stays",
          result.about.step, result.not_finite);
    }
  }
  if (result.about.metric_value) {
    event["metric"] = result.about.metric;
    event["metric_value"] = *result.about.metric_value;
  }
  session_.write_event("checkpoint_saved", event);
  session_.log()->info("checkpoint of batch {}: {} in {}", result.about.step,
                       format_bytes(static_cast<double>(result.bytes)), result.path.string());
}

bool Checkpoints::make_durable() {
  if (!last_) return false;
  snapshot_.complete_now();
  hand_over();
  for (;;) {
    wait_for_saver();
    std::string error = result_ ? result_->error : "";
    if (!result_) error = "its saver has given no answer";
    // Rank 0's saver knows the results of all hosts' savers.
    const std::string key = "train/checkpoint-durable-" + std::to_string(++awaited_);
    const std::string told = wait_for_rank_0(key, error.empty() ? "durable" : error);
    if (told == "durable") return true;
    if (std::exchange(is_second_try_, true)) {
      throw Error((is_last_ ? "the last checkpoint" : "the checkpoint of batch " + std::to_string(last_->batch)) +
                  " could not be written: " + told);
    }
    result_.reset();
    snapshot_.offer_again();
    handed_over_ = false;
    hand_over();
  }
}

}  // namespace dtrain::train
