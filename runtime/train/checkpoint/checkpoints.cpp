#include "checkpoint/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/units.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {

namespace {

using profile::Phase;
using profile::PhaseScope;

constexpr std::size_t kPage = 4096;
// Where the experiment names no period, a crash loses at most about so much.
constexpr std::chrono::minutes kAutomaticPeriod{10};
constexpr std::chrono::seconds kRetryAfter{10};
constexpr std::chrono::seconds kWorthTelling{1};
constexpr std::chrono::hours kForever{24 * 365};

std::size_t pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

Checkpoints::Checkpoints(run::RankSession& session, const Options& options, std::function<void(StateVisitor&)> visit)
    : session_(session),
      options_(options),
      visit_(std::move(visit)),
      hosts_(find_checkpoint_hosts(session.control(), session.checkpoint_folder())),
      folder_(session.checkpoint_folder()),
      last_time_(session.clock().monotonic()) {}

Checkpoints::~Checkpoints() = default;

bool Checkpoints::saver_busy() {
  if (!saver_) return false;
  if (auto result = saver_->poll()) take_result(*result);
  return saver_ && saver_->busy();
}

bool Checkpoints::wants_one() const {
  if (session_.world().rank != 0) return false;
  const Nanoseconds passed = session_.clock().monotonic() - last_time_;
  if (result_ && !result_->error.empty()) return passed >= kRetryAfter;
  return options_.period == 0 && passed >= kAutomaticPeriod &&
         session_.experiment().checkpoint_policy != config::CheckpointPolicy::kNone;
}

bool Checkpoints::is_due(std::int64_t batch, bool wanted) const {
  return wanted || (options_.period > 0 && batch - last_batch_ >= options_.period);
}

void Checkpoints::delay(std::int64_t batch) {
  if (!delayed_since_) delayed_since_ = session_.clock().monotonic();
  const bool long_ago = session_.clock().monotonic() - *delayed_since_ > kWorthTelling;
  if (!long_ago || std::exchange(told_of_delay_, true) || session_.world().rank != 0) return;
  const std::string cause =
      "the checkpoint of batch " + std::to_string(last_batch_) + " is still being written to " + folder_.string();
  session_.log()->warn("a checkpoint is due at batch {} and waits: {}", batch, cause);
  session_.write_event("checkpoint_delayed", {{"step", batch}, {"cause", cause}});
}

std::size_t Checkpoints::own_offset(int region) const {
  return shared_bytes_ + static_cast<std::size_t>(region) * own_capacity_;
}

void Checkpoints::make_memory(std::size_t bytes_of_largest_own) {
  saver_.reset();
  memory_.reset();
  number_ = 0;
  own_capacity_ = pages(bytes_of_largest_own + bytes_of_largest_own / 4);
  const auto ranks_here = static_cast<int>(hosts_.ranks_here.size());
  const int regions = hosts_.folder_is_shared ? ranks_here : session_.world().size;
  const std::size_t bytes = own_offset(regions);
  SharedMemory memory = session_.share_on_host(
      "checkpoint-memory-" + std::to_string(memories_++),
      [&] { return checkpoint::SnapshotMemory::create(bytes, ranks_here); }, comm::HostAccess::kWrite);
  memory_.emplace(std::move(memory), ranks_here);
}

void Checkpoints::start_saver() {
  checkpoint::SaverOptions options;
  options.storage = folder_;
  options.host = hosts_.host;
  options.hosts = hosts_.folder_is_shared ? hosts_.hosts : 1;
  const auto& storage = session_.experiment().checkpoint_storage;
  options.retention = {storage.save_trial_latest, storage.save_trial_best};
  options.log = session_.run_dir() / "logs" / "saver.log";
  saver_ = std::make_unique<checkpoint::Saver>(options, *memory_);
}

void Checkpoints::save(const Moment& moment) {
  wait_for_saver();
  // The profile's phase and the figure in the event begin where this rank would have gone on.
  const Nanoseconds began = session_.clock().monotonic();
  last_ = moment;
  last_batch_ = moment.batch;
  delayed_since_.reset();
  told_of_delay_ = false;
  result_.reset();
  const StateImage image({.rank = session_.world().rank, .shared = options_.shared, .tied = options_.tied}, visit_);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(session_.world().size));
  sizes[static_cast<std::size_t>(session_.world().rank)] = static_cast<std::int64_t>(image.own().bytes());
  session_.communicator().all_reduce(sizes.data(), sizes.size(), comm::DataType::kInt64).wait();
  const auto largest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  const std::size_t shared = hosts_.host == 0 ? pages(image.model().bytes()) + pages(image.optimizer().bytes()) : 0;
  if (hosts_.saves() && (!memory_ || largest > own_capacity_ || shared > shared_bytes_)) {
    shared_bytes_ = shared;
    make_memory(largest);
  }
  copy(image, sizes);
  last_time_ = session_.clock().monotonic();
  copy_s_ = to_seconds(last_time_ - began);
}

void Checkpoints::wait_for_saver() {
  if (!saver_ || !saver_->busy()) return;
  const Nanoseconds began = session_.clock().monotonic();
  if (auto result = saver_->wait(kForever)) take_result(*result);
  const Nanoseconds waited = session_.clock().monotonic() - began;
  if (waited < kWorthTelling || session_.world().rank != 0) return;
  session_.log()->warn("training has waited {} for the checkpoint of batch {} to be written to {}",
                       format_duration(waited), last_batch_, folder_.string());
}

void Checkpoints::copy(const StateImage& image, const std::vector<std::int64_t>& sizes) {
  ++number_;
  if (hosts_.saves()) {
    std::byte* const base = memory_->data();
    if (hosts_.host == 0) {
      std::byte* const model = base;
      std::byte* const optimizer = base + pages(image.model().bytes());
      if (hosts_.is_leader()) {
        image.model().write_header(model);
        image.optimizer().write_header(optimizer);
      }
      // One stretch of bytes for each rank of this host. What ranks do not share is rank 0's.
      const std::size_t in_model = image.model().data_bytes();
      const std::size_t all = in_model + image.optimizer().data_bytes();
      const std::size_t ranks = options_.shared ? hosts_.ranks_here.size() : 1;
      const auto place = static_cast<std::size_t>(hosts_.local_rank);
      if (place < ranks) {
        const std::size_t first = all / ranks * place, last = place + 1 == ranks ? all : all / ranks * (place + 1);
        image.model().write_data(model, std::min(first, in_model), std::min(last, in_model));
        image.optimizer().write_data(optimizer, std::max(first, in_model) - in_model,
                                     std::max(last, in_model) - in_model);
      }
    }
    const int region = hosts_.folder_is_shared ? hosts_.local_rank : session_.world().rank;
    std::byte* const own = base + own_offset(region);
    image.own().write_header(own);
    image.own().write_data(own, 0, image.own().data_bytes());
  }
  if (!hosts_.folder_is_shared) gather_from_other_hosts(image, sizes);
  if (!hosts_.saves()) return;
  memory_->mark_copied(hosts_.local_rank, number_);
  if (hosts_.is_leader()) hand_over(*last_, image, sizes);
}

// Ranks of hosts that do not see the folder send their files to rank 0's host.
void Checkpoints::gather_from_other_hosts(const StateImage& image, const std::vector<std::int64_t>& sizes) {
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    if (hosts_.host_of[rank] == 0) continue;
    std::vector<std::byte> bytes(static_cast<std::size_t>(sizes[rank]));
    if (static_cast<int>(rank) == session_.world().rank) {
      image.own().write_header(bytes.data());
      image.own().write_data(bytes.data(), 0, image.own().data_bytes());
    }
    session_.communicator()
        .broadcast(bytes.data(), bytes.size(), comm::DataType::kUint8, static_cast<int>(rank))
        .wait();
    if (session_.world().rank == 0) {
      std::memcpy(memory_->data() + own_offset(static_cast<int>(rank)), bytes.data(), bytes.size());
    }
  }
}

void Checkpoints::hand_over(const Moment& moment, const StateImage& image, const std::vector<std::int64_t>& sizes) {
  checkpoint::SaveRequest& request = request_ = {};
  request.number = number_;
  request.about.step = moment.batch;
  request.about.epoch = moment.epoch;
  request.about.world_size = session_.world().size;
  request.about.reason = moment.reason;
  request.about.metric = moment.metric_value ? session_.experiment().searcher.metric : "";
  request.about.metric_value = moment.metric_value;
  request.about.smaller_is_better = session_.experiment().searcher.smaller_is_better;
  request.about.time = to_seconds(session_.clock().wall());
  request.about.run = options_.run;
  request.state = image.values();
  if (hosts_.host == 0) {
    request.files.push_back({checkpoint::kModelFile, 0, image.model().bytes()});
    request.files.push_back({checkpoint::kOptimizerFile, pages(image.model().bytes()), image.optimizer().bytes()});
  }
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto here = std::find(hosts_.ranks_here.begin(), hosts_.ranks_here.end(), static_cast<int>(rank));
    if (hosts_.folder_is_shared && here == hosts_.ranks_here.end()) continue;
    const int region =
        hosts_.folder_is_shared ? static_cast<int>(here - hosts_.ranks_here.begin()) : static_cast<int>(rank);
    request.files.push_back(
        {checkpoint::rank_file(static_cast<int>(rank)), own_offset(region), static_cast<std::size_t>(sizes[rank])});
  }
  send_request();
}

void Checkpoints::send_request() {
  if (!saver_) start_saver();
  saver_->save(request_);
}

void Checkpoints::take_result(const checkpoint::SaveResult& result) {
  result_ = result;
  if (!result.error.empty()) saver_.reset();  // the next checkpoint has a new one
  if (session_.world().rank != 0) return;
  Json event = {{"step", result.about.step}};
  if (!result.error.empty()) {
    session_.log()->error("the checkpoint of batch {} could not be written: {}", result.about.step, result.error);
    event["cause"] = result.error;
    return session_.write_event("checkpoint_failed", event);
  }
  event["epoch"] = result.about.epoch;
  event["path"] = result.path.string();
  event["bytes"] = result.bytes;
  event["reason"] = result.about.reason;
  event["copy_s"] = copy_s_;
  event["wait_s"] = result.wait_s;
  event["write_s"] = result.write_s;
  event["deleted"] = result.deleted;
  if (result.about.metric_value) {
    event["metric"] = result.about.metric;
    event["metric_value"] = *result.about.metric_value;
  }
  session_.write_event("checkpoint_saved", event);
  session_.log()->info("checkpoint of batch {}: {} in {}", result.about.step, format_bytes(result.bytes),
                       result.path.string());
}

bool Checkpoints::finish(bool must_last) {
  if (!last_) return false;
  for (const bool again : {false, true}) {
    wait_for_saver();
    std::string error = result_ ? result_->error : "";
    if (hosts_.is_leader() && hosts_.saves() && !result_) error = "the saver did not answer";
    // Rank 0's saver knows about all hosts'.
    const std::string key = "train/checkpoint-end-" + std::to_string(last_batch_) + (again ? "-again" : "");
    if (session_.world().rank == 0) session_.control().set(key, error.empty() ? "durable" : error);
    const std::string told = session_.control().get(key);
    if (told == "durable") return true;
    if (!again) {
      ++number_;
      result_.reset();
      if (!hosts_.saves()) continue;
      memory_->mark_copied(hosts_.local_rank, number_);
      request_.number = number_;
      if (hosts_.is_leader()) send_request();
    } else if (must_last) {
      throw Error("the last checkpoint could not be written: " + told,
                  "free space or name another folder with checkpoint_storage; checkpoint_policy: none does without");
    }
  }
  return false;
}

}  // namespace dtrain::train
