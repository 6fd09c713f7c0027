#include "dtrain/torch_distributed/backend.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "call.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "progress.h"

namespace dtrain::torch_distributed {
namespace {

using std::chrono::duration_cast;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAfterRank0{2'000};  // of a monitored barrier: rank 0's verdict is on its way

}  // namespace

Backend::Backend(const c10d::DistributedBackendOptions& options)
    : c10d::Backend(options.group_rank, options.group_size),
      options_(c10::make_intrusive<Options>("dtrain", duration_cast<milliseconds>(options.timeout))) {
  options_->group_name = options.group_id;
  Meeting meeting{options.store, rank_, size_, options_->timeout, {}};
  for (const std::int64_t rank : options.global_ranks_in_group) {
    options_->global_ranks_in_group.push_back(static_cast<std::uint64_t>(rank));
    meeting.names.push_back(static_cast<int>(rank));
  }
  for (int rank = 0; meeting.names.size() < static_cast<std::size_t>(size_); ++rank) meeting.names.push_back(rank);
  group_ = std::make_shared<Group>(meeting);
  group_->set_titles([this] { return std::pair(pg_uid_.empty() ? options_->group_name : pg_uid_, pg_desc_); });
  Progress::instance().add(group_);
}

Backend::~Backend() {
  shutdown();
}

std::uint64_t Backend::getSequenceNumberForGroup() {
  return group_->sequence();
}

c10d::ErrorType Backend::getError() {
  const std::exception_ptr error = group_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const comm::TimedOut&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const std::exception&) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;
  c10d::DistributedBackendOptions group{store,
                                        static_cast<int>(place - ranks.begin()),
                                        static_cast<int>(ranks.size()),
                                        options->timeout,
                                        options->group_name,
                                        {}};
  for (const int rank : ranks) group.global_ranks_in_group.push_back(group_->name_of(rank));
  return c10::make_intrusive<Backend>(group);
}

void Backend::abort() {
  const std::string cause = "dtrain: the process group was aborted";
  std::vector<torch_distributed::WorkPtr> ended;
  group_->abort(cause);
  group_->fail(std::make_exception_ptr(CommError(cause)), ended);
  Progress::instance().end(ended);
}

void Backend::shutdown() {
  std::vector<torch_distributed::WorkPtr> ended;
  Progress::instance().advance(*group_);
  group_->close("dtrain: the process group was destroyed", ended);
  Progress::instance().end(ended);
}

bool Backend::supportsTensorAlloc(c10::DeviceIndex) {
  return group_->has_arena();
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(options.device().is_cpu(), "dtrain: memory is allocated for the CPU only");
  return group_->allocate({size}, options);
}

void Backend::startCoalescing() {
  coalesced_.emplace();
}

Backend::WorkPtr Backend::endCoalescing() {
  TORCH_CHECK(coalesced_, "dtrain: there is no sequence of coalesced operations to end");
  std::vector<WorkPtr> works = std::move(*coalesced_);
  coalesced_.reset();
  return c10::make_intrusive<JoinedWork>(rank_, std::move(works));
}

Backend::WorkPtr Backend::issued(WorkPtr work) {
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

// Rank 0 waits for each of the others, and then tells them who has not come.
void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  if (const std::exception_ptr error = group_->error()) std::rethrow_exception(error);
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  const auto until = steady_clock::now() + timeout;
  const std::string key = "monitored/" + std::to_string(monitored_++) + "/";
  comm::ControlPlane& control = group_->control();
  if (rank_ != 0) {
    control.set(key + std::to_string(rank_), "here");
    const auto verdict = control.get_within(key + "verdict", timeout + kAfterRank0);
    TORCH_CHECK(verdict && verdict->empty(), "Rank ", rank_,
                " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0",
                verdict ? ": " + *verdict : ". Please check rank 0 logs for faulty rank.");
    return;
  }
  std::vector<std::string> missing;
  std::vector<int> missing_in_world;
  bool is_late = false;  // rank 0 itself: it has not waited for the last that is missing
  for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
    const auto left = std::max(milliseconds(0), duration_cast<milliseconds>(until - steady_clock::now()));
    if (control.get_within(key + std::to_string(rank), left)) continue;
    is_late = left.count() == 0;
    missing.push_back(std::to_string(rank));
    missing_in_world.push_back(group_->in_world(rank));
  }
  std::string verdict;
  if (!missing.empty()) {
    const std::string time = std::to_string(timeout.count()) + " ms";
    verdict = is_late && !wait_all_ranks ? "Rank 0 timed out in monitoredBarrier after " + time + "; " : std::string();
    verdict +=
        (wait_all_ranks ? "Ranks " : "Rank ") + join(missing, ", ") + " failed to pass monitoredBarrier in " + time;
    verdict = group_->explained(verdict, missing_in_world);
  }
  control.set(key + "verdict", verdict);
  TORCH_CHECK(verdict.empty(), verdict);
}

std::string write_flight_record(const std::string& prefix) {
  const auto recorder = FlightRecorder::newest();
  return recorder ? recorder->write(prefix) : std::string();
}

}  // namespace dtrain::torch_distributed
