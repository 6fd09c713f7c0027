#include "checkpoint/generations.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/own_state.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/assemble.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/run_memory.h"

namespace dtrain::train {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kShareForStates = 0.01;
constexpr double kShareAfterFault = 0.05;
constexpr Seconds kShortest{1}, kLongest{600}, kFirstAfterFault{0.25};
constexpr Seconds kBeforeReservation{0.25};  // from the start on, so that a very short run does not pay for it
constexpr double kShareOfBatch = 0.005;      // for publications
constexpr std::size_t kMeasuredPublications = 8;
constexpr int kBatchesUnpublished = 500;  // before publications that cost too much are measured again
constexpr std::size_t kLargestPublished = 4u << 20, kMoreOwn = 64u << 10;  // bytes
constexpr int kMostThreads = 4;
constexpr std::string_view kReason = "memory";

std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Generations::Generations(rank::RankSession& session, TrainingStep& step, const CheckpointHosts& hosts,
                         TensorNames names, Json run, std::function<void(StateVisitor&)> visit)
    : session_(session),
      step_(step),
      run_(std::move(run)),
      visit_(std::move(visit)),
      hosts_(hosts.each_alone()),
      folder_(session.memory().folder),
      snapshot_(session, step, hosts_, std::move(names), visit_),
      last_time_(session.clock().monotonic()) {
  snapshot_.keep_in(*this);
  if (!is_one_host()) parts_.emplace(session, hosts_, snapshot_);
  if (!session.memory().kept || !step.parameters().memory().on_host()) return;
  stage_ = Stage::kBegin;
  if (!is_one_host() && !step.state_is_shared()) turn_off("ranks of several hosts step by themselves (local steps)");
}

Generations::~Generations() {
  if (reserver_.joinable()) reserver_.join();
}

bool Generations::busy() {
  if (stage_ == Stage::kReserving && reserver_.joinable()) return !reserved_;
  if (stage_ != Stage::kReady) return false;
  if (!snapshot_.complete()) return true;
  if (pending_) complete();
  return pending_.has_value();
}

bool Generations::wanted() const {
  if (stage_ == Stage::kOff || session_.world().rank != 0 || pending_ || is_unsettled_) return false;
  if (stage_ == Stage::kReserving) return true;
  const Nanoseconds passed = session_.clock().monotonic() - last_time_;
  return passed >= (stage_ == Stage::kBegin ? std::min(kBeforeReservation, interval()) : interval());
}

// A run that has just gone on after a fault takes its first state at once, and the next ones in intervals that double:
// then it gets further even if faults come every few seconds. The first does not wait for an update, either.
Seconds Generations::interval() const {
  const auto asked = session_.experiment().recovery.seconds_between_states();
  const Seconds by_copies(link_s_ / kShareForStates);
  const Seconds by_cost = std::clamp(Seconds((cost_s_ + link_s_) / kShareForStates), kShortest, kLongest);
  const Seconds usual = asked ? Seconds(*asked) : std::max(by_cost, by_copies);
  if (session_.resume_from().empty()) return usual;
  if (taken_ == 0) return Seconds(0);
  const Seconds early = kFirstAfterFault * static_cast<double>(std::int64_t{1} << std::min(taken_ - 1, 20));
  return std::min(usual, std::max(early, Seconds((cost_s_ + link_s_) / kShareAfterFault)));
}

void Generations::take(const Moment& moment) {
  if (stage_ == Stage::kBegin) return reserve();
  if (stage_ == Stage::kReserving && !connect()) return;
  if (stage_ != Stage::kReady || is_unsettled_ || !reserve_optimizers()) return;
  last_time_ = session_.clock().monotonic();
  ++taken_;
  own_failed_ = false;
  is_unsettled_ = !is_one_host();
  if (hosts_.is_leader()) pending_ = moment;
  const bool at_once = taken_ == 1 && !session_.resume_from().empty();
  snapshot_.take(/*at_update=*/!at_once);
}

// The first rank of each host finds out if there is room, and has a thread reserve it.
void Generations::reserve() {
  layout_ = snapshot_.lay_out();
  reserves_optimizer_ = !snapshot_.is_divided();
  std::string problem;
  if (hosts_.is_leader()) {
    problem = session_.memory().problem;
    const std::size_t bytes = bytes_of_slots();
    const auto there = static_cast<std::size_t>(bytes_in_use());
    if (problem.empty()) problem = checkpoints::why_no_room(folder_, bytes - std::min(bytes, there));
  }
  problem = first_problem("train/states-in-memory", problem);
  if (!problem.empty()) return turn_off(problem);
  stage_ = Stage::kReserving;
  if (!hosts_.is_leader()) return;
  std::optional<std::size_t> reserved;
  if (!reserves_optimizer_) reserved = layout_->optimizer().bytes() - layout_->optimizer().data_bytes();
  reserver_ =
      std::thread([this, reserved, model = snapshot_.bytes_of_model(), optimizer = snapshot_.bytes_of_optimizer()] {
        try {
          names_ = checkpoints::reserve_slots(folder_, model, optimizer, reserved);
        } catch (const std::exception& error) {
          reserve_error_ = describe(error);
        }
        reserved_ = true;
      });
}

std::string Generations::first_problem(const std::string& key, const std::string& own) {
  const std::string where = own.empty() || is_one_host() ? "" : " (on " + host::host_identity().name + ")";
  const std::vector<std::string> all = session_.control().gather(key, own + where);
  const auto first = std::ranges::find_if(all, [](const std::string& problem) { return !problem.empty(); });
  return first == all.end() ? std::string() : *first;
}

std::int64_t Generations::bytes_in_use() const {
  std::int64_t bytes = 0;
  std::error_code code;
  for (std::filesystem::recursive_directory_iterator file(folder_, code);
       !code && file != std::filesystem::recursive_directory_iterator(); file.increment(code)) {
    if (file->is_regular_file(code)) bytes += static_cast<std::int64_t>(file->file_size(code));
  }
  return bytes;
}

// Maps the memory on all ranks. Returns false if it could not be had.
bool Generations::connect() {
  const std::string key =
      "train/states-in-memory-slots-" + std::to_string(hosts_.host_of[static_cast<std::size_t>(session_.world().rank)]);
  if (hosts_.is_leader()) {
    reserver_.join();
    const std::size_t own = snapshot_.largest_own() > kLargestPublished ? 0 : 2 * snapshot_.largest_own() + kMoreOwn;
    try {
      if (reserve_error_.empty()) {
        checkpoints::GenerationBoard::create(folder_, hosts_.ranks_here, session_.world().size, own);
        checkpoints::GenerationBoard(folder_).set(names_.turn, names_.newest);
      }
    } catch (const SystemError& error) {
      reserve_error_ = describe(error);
    }
    session_.control().set(key, Json{{"error", reserve_error_}, {"names", to_json(names_)}}.dump());
  }
  const Json told = Json::parse(session_.control().get(key));
  std::string problem = told.at("error").get<std::string>();
  if (problem.empty()) problem = map_slots(checkpoints::slot_names_of(told.at("names")));
  problem = first_problem("train/states-in-memory-mapped", problem);
  if (!problem.empty()) {
    turn_off(problem);
    return false;
  }
  if (parts_ && hosts_.is_leader()) parts_->connect();
  stage_ = Stage::kReady;
  if (session_.world().rank == 0) {
    plan_ = {{"kept", true}, {"bytes", bytes_of_slots()}, {"folder", folder_.string()}};
    if (parts_) plan_["copies"] = parts_->copies();
    session_.update_plan("states_in_memory", plan_);
  }
  return true;
}

// Of both slots on this host.
std::size_t Generations::bytes_of_slots() const {
  std::size_t bytes = snapshot_.bytes_of_model();
  if (reserves_optimizer_) bytes += snapshot_.bytes_of_optimizer();
  if (parts_) bytes += static_cast<std::size_t>(checkpoints::total_bytes(parts_->files()));
  return 2 * bytes;
}

// A strategy that is tried may divide the optimizer's state, and another one may take its place.
bool Generations::reserve_optimizers() {
  if (reserves_optimizer_ || snapshot_.is_divided()) return true;
  std::string problem;
  if (hosts_.is_leader()) {
    try {
      checkpoints::reserve_optimizers(folder_, names_, snapshot_.bytes_of_optimizer());
    } catch (const SystemError& error) {
      problem = describe(error);
    }
  }
  problem = first_problem("train/states-in-memory-reserved", problem);
  if (!problem.empty()) turn_off(problem);
  reserves_optimizer_ = problem.empty();
  return problem.empty();
}

// Returns why it could not; empty: it could.
std::string Generations::map_slots(const checkpoints::SlotNames& names) {
  const std::size_t share = (snapshot_.bytes_of_model() + snapshot_.bytes_of_optimizer()) / hosts_.ranks_here.size();
  try {
    for (const std::string& name : names.slots) {
      slots_.emplace_back(folder_, name, snapshot_.bytes_of_model(), snapshot_.bytes_of_optimizer());
      if (reserves_optimizer_) slots_.back().prefault(share * static_cast<std::size_t>(hosts_.local_rank), share);
    }
    board_.emplace(folder_);
    return {};
  } catch (const SystemError& error) {
    return error.what();
  }
}

void Generations::turn_off(const std::string& why) {
  stage_ = Stage::kOff;
  slots_.clear();
  parts_.reset();
  if (session_.world().rank != 0) return;
  session_.log()->warn("no training states are kept in memory: {}; after a fault the run goes on from a checkpoint",
                       why);
  session_.update_plan("states_in_memory", {{"kept", false}, {"reason", why}});
}

checkpoints::GenerationFiles Generations::files_of(const Moment& moment) const {
  checkpoints::GenerationFiles files;
  files.about = {.step = moment.batch,
                 .epoch = moment.epoch,
                 .world_size = session_.world().size,
                 .reason = {},
                 .metric = {},
                 .metric_value = {}};
  files.about.reason = kReason;
  files.about.smaller_is_better = session_.experiment().searcher.smaller_is_better;
  files.about.time = to_seconds(session_.clock().wall());
  files.about.run = run_;
  return files;
}

// A leader. The parts of all ranks of the host must be written.
void Generations::complete() {
  const std::uint64_t number = snapshot_.number();
  if (!board_->all_written(number)) return;
  if (parts_) {
    const std::string& slot_name = names_.slots[static_cast<std::size_t>(names_.turn)];
    const bool at_once = !session_.resume_from().empty() && interval() < kShortest;
    if (!parts_->copies_ended(folder_ / slot_name, at_once)) return;
  }
  const Moment moment = *std::exchange(pending_, std::nullopt);
  if (!parts_) cost_s_ = snapshot_.copy_seconds();
  const bool is_whole = !snapshot_.spoiled() && !board_->any_failed(number);
  if (!is_whole || !board_->begin_completion()) return;
  try {
    checkpoints::GenerationFiles files = files_of(moment);
    if (parts_) {
      files.files = shared_files();
      parts_->complete(folder_, names_, *board_, std::move(files));
    } else {
      files.state = to_line(snapshot_.values());
      for (const checkpoints::FileImage& file : snapshot_.files()) files.files.push_back({file.name, file.bytes, {}});
      checkpoints::complete_generation(folder_, names_, files);
      board_->set(names_.turn, names_.newest);
    }
    board_->end_completion(/*by_survivor=*/false);
  } catch (const std::exception& error) {
    board_->end_completion(/*by_survivor=*/false);
    // The others follow: rank 0 alone asks for states, and hosts tell each other what they have.
    parts_ ? parts_->fail() : void(stage_ = Stage::kOff);
    session_.log()->warn("no further training states are kept in memory: {}", describe(error));
  }
}

std::vector<checkpoints::ManifestFile> Generations::shared_files() const {
  return {{checkpoints::kModelFile, snapshot_.bytes_of_model(), {}},
          {checkpoints::kOptimizerFile, snapshot_.bytes_of_optimizer(), {}}};
}

// A state is given up on all hosts, or on none. If one cannot keep any more, none does.
void Generations::settle() {
  if (!is_unsettled_ || stage_ != Stage::kReady) return;
  is_unsettled_ = false;
  const HostParts::Outcome outcome = parts_->settle(folder_, names_, *board_);
  cost_s_ = outcome.copy_s;
  link_s_ = outcome.link_s;
  if (!outcome.can_go_on) {
    return turn_off("a host cannot keep its part of a state any more, or has lost its connection for copies");
  }
  if (outcome.is_whole) tell_of_copies();
}

// Rank 0. The plan is written again when the interval has changed much.
void Generations::tell_of_copies() {
  if (session_.world().rank != 0) return;
  const double now = std::max(interval().count(), 0.001);
  if (told_interval_s_ > 0 && now < 2 * told_interval_s_ && told_interval_s_ < 2 * now) return;
  told_interval_s_ = now;
  plan_["copied_bytes"] = parts_->bytes_sent();
  plan_["copied_s"] = link_s_;
  plan_["interval_s"] = now;
  try {
    session_.update_plan("states_in_memory", plan_);
  } catch (const SystemError&) {  // a disk that is full ends no run
  }
}

const checkpoints::GenerationSlot& Generations::slot() const {
  return slots_[static_cast<std::size_t>(board_->turn())];
}

std::byte* Generations::data() const {
  return slot().data();
}

void Generations::write_own(std::span<const std::byte> file, const std::optional<FileImage>& moments) {
  const int rank = session_.world().rank;
  try {
    slot().write_file(checkpoints::rank_file(rank), as_text(file));
    if (moments) write_moments(*moments);
  } catch (const Error& error) {
    own_failed_ = true;
    session_.log()->warn("rank {}'s part of the training state in memory cannot be written: {}", rank, describe(error));
  }
}

// The file of the state before the last one is written over: its pages are there already.
void Generations::write_moments(const FileImage& moments) const {
  const std::string name = checkpoints::moments_file(session_.world().rank);
  const UniqueFd file = slot().open_file(name, moments.bytes());
  const auto write = [&](std::string_view bytes) {
    if (write_all(file.get(), bytes) != bytes.size()) throw SystemError("cannot write into memory: " + name, errno);
  };
  std::vector<std::byte> header(moments.bytes() - moments.data_bytes());
  moments.write_header(header.data());
  write(as_text(header));
  moments.for_each([&](const std::string&, const at::Tensor& value) {
    write({static_cast<const char*>(value.const_data_ptr()), value.nbytes()});
  });
}

void Generations::mark_written(std::uint64_t number) {
  board_->mark_written(hosts_.local_rank, number, own_failed_);
}

void Generations::publish(const Moment& moment) {
  busy();  // completes a state that the last update has copied
  if (stage_ != Stage::kReady || session_.world().size == 1 || step_.window_is_open()) return;
  if (!step_.has_all()) return tell_of_survivors("no rank has all of the parameters and the optimizer's state");
  const Nanoseconds began = session_.clock().monotonic();
  const Nanoseconds batch = began - std::exchange(last_publication_, began);
  if (unpublished_ > 0) {
    --unpublished_;
    return;
  }
  OwnStateWriter record(board_->begin_publication(hosts_.local_rank));
  visit_(record);
  if (record.fits()) {
    board_->publish(hosts_.local_rank, moment.batch, moment.epoch, record.bytes());
    batch_of_parameters_ = moment.batch;
  }
  measure(batch, session_.clock().monotonic() - began, record);
}

// Publications pause while their median takes too large a share of the median batch, or if they are too large.
void Generations::measure(Nanoseconds batch, Nanoseconds publication, const OwnStateWriter& record) {
  batch_ns_.push_back(batch.count());
  publication_ns_.push_back(publication.count());
  if (record.fits() && batch_ns_.size() < kMeasuredPublications) return;
  const auto of_batch = static_cast<double>(median(std::exchange(batch_ns_, {})));
  const auto own = static_cast<double>(median(std::exchange(publication_ns_, {})));
  std::string why_not;
  if (!record.fits()) {
    why_not = "a rank's own state takes " + format_bytes(static_cast<double>(record.bytes()));
  } else if (own > kShareOfBatch * of_batch) {
    why_not = fmt::format("a rank's own state ({}) takes {:.0f} us to publish, of {:.0f} us of a batch",
                          format_bytes(static_cast<double>(record.bytes())), own / 1e3, of_batch / 1e3);
  }
  if (!why_not.empty()) unpublished_ = kBatchesUnpublished;
  tell_of_survivors(why_not);
}

void Generations::tell_of_survivors(const std::string& why_not) {
  if (session_.world().rank != 0 || std::exchange(why_no_survivors_, why_not) == why_not) return;
  plan_["by_survivors"] = {{"saved", why_not.empty()}, {"reason", why_not}};
  try {
    session_.update_plan("states_in_memory", plan_);
  } catch (const SystemError&) {  // a disk that is full ends no run
  }
}

std::optional<std::int64_t> Generations::save_as_survivor() {
  if (!batch_of_parameters_ || stage_ != Stage::kReady || !step_.has_all()) return std::nullopt;
  const std::int64_t batch = *batch_of_parameters_;
  if (board_->newest() >= batch) return std::nullopt;
  std::vector<checkpoints::GenerationBoard::Publication> published;
  for (int rank = 0; rank < board_->ranks(); ++rank) {
    const auto found = board_->published(rank, batch);
    if (!found) return std::nullopt;
    published.push_back(*found);
  }
  if (!board_->begin_completion()) return std::nullopt;
  // A part that is complete here may be one of a whole state. Where it is not, survivors of another host save.
  if (board_->newest() >= batch || board_->has_unsettled()) {
    board_->end_completion(/*by_survivor=*/false);
    return std::nullopt;
  }
  session_.tell_of_saving();
  const Nanoseconds began = session_.clock().monotonic();
  std::byte* const model = data();
  std::byte* const optimizer = model + (snapshot_.place_of_optimizer());
  DeviceCopies from_device;
  layout_->model().write_header(model);
  layout_->optimizer().write_header(optimizer);
  layout_->model().write_data(model, 0, layout_->model().data_bytes(), /*is_first=*/true, from_device);
  const int cores = static_cast<int>(std::thread::hardware_concurrency()) * session_.world().local_size;
  snapshot_.copy_all_now(std::clamp(cores, 1, kMostThreads));
  checkpoints::GenerationFiles files = files_of({batch, published.front().epoch});
  files.files = shared_files();
  std::vector<std::vector<std::byte>> bytes;
  std::vector<checkpoints::OwnFile> own;
  // With several hosts no rank has what all of them have published.
  for (int rank = 0; is_one_host() && rank < board_->ranks(); ++rank) {
    const auto record = published[static_cast<std::size_t>(rank)].bytes;
    const StateImage image({.rank = rank, .own_alone = true, .names = {}},
                           [&](StateVisitor& visitor) { visit_own_state(record, visitor); });
    if (rank == 0) {
      files.state = to_line(image.values());
      image.own().for_each([&](const std::string& path, const at::Tensor& value) {
        if (!path.starts_with(state_path::kBuffers)) return;
        std::byte* const place = snapshot_.place_in_model(path.substr(state_path::kBuffers.size()));
        if (place) std::memcpy(place, value.const_data_ptr(), value.nbytes());
      });
    }
    bytes.push_back(image.own().file());
    own.push_back({checkpoints::rank_file(rank), as_text(bytes.back())});
    files.files.push_back({own.back().name, own.back().bytes.size(), {}});
  }
  checkpoints::complete_by_survivor(folder_, slot(), files, own);
  board_->end_completion(/*by_survivor=*/true);
  session_.log()->info("the state of batch {} was saved in memory in {}", batch,
                       format_duration(session_.clock().monotonic() - began));
  return batch;
}

}  // namespace dtrain::train
