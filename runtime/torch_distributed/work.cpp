#include "work.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <thread>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "lane.h"
#include "progress.h"

namespace dtrain::torch_distributed {
namespace {

using std::chrono::steady_clock;

constexpr unsigned kEagerLooks = 256;     // without a pause: a peer in step comes that soon
constexpr unsigned kLooksForOthers = 64;  // of these one is for the operations of other groups
// After that the thread sleeps between two looks. It is a time and not a number of looks: where other processes want
// the core, each of them computes for milliseconds before a call of sched_yield() returns.
constexpr std::chrono::milliseconds kYielding{2};
constexpr std::chrono::microseconds kSleep{50};
constexpr std::chrono::milliseconds kBetweenChecks{2};  // of the deadline, and of the states of the ranks
// A rank that has left counts as missing from then on, if so many checks in a row find it so: what it has sent before
// may come with the looks between them.
constexpr std::chrono::milliseconds kUntilLeft{100};
constexpr unsigned kChecksUntilLeft = 16;
// A thread that has not computed for this long is blocked. At the end of a pass futures are completed one by one, and
// their callbacks may wait for other operations, but hardly for each other.
constexpr std::chrono::milliseconds kBlocked{50};
constexpr std::chrono::seconds kBlockedAtEnd{10};
constexpr std::chrono::seconds kUntilWarning{30};

std::atomic<Observer*> the_observer{nullptr};

std::int64_t now_ns() {
  return std::chrono::duration_cast<Nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() == at::kStrided) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

// "all_reduce" of "dtrain:all_reduce"
std::string_view name_in(std::string_view title) {
  return title.substr(title.find(':') + 1);
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

thread_local int callbacks_running = 0;  // of futures, on this thread

struct RunningCallbacks {
  RunningCallbacks() { ++callbacks_running; }
  ~RunningCallbacks() { --callbacks_running; }
  RunningCallbacks& operator=(RunningCallbacks&&) = delete;
};

}  // namespace

void observe(Observer& observer) {
  the_observer.store(&observer, std::memory_order_release);
}

Observer* current_observer() {
  return the_observer.load(std::memory_order_acquire);
}

Waiting::Waiting(GroupWork& work)
    : work_(work), observer_([] {
        Observer* const observer = the_observer.load(std::memory_order_acquire);
        return observer != nullptr && observer->begin_wait() ? observer : nullptr;
      }()) {
  if (observer_ != nullptr) work_.waited_since_ns_ = now_ns();
}

Waiting::~Waiting() {
  if (observer_ == nullptr) return;
  work_.waited_ns_ += now_ns() - work_.waited_since_ns_.exchange(0);
  observer_->end_wait();
}

// A thread within a backward pass that has asked for futures. Used with the mutexes of their works held, and by the
// thread of Progress that helps.
struct BackwardPass {
  explicit BackwardPass(int graph_task) : id(graph_task) { pthread_getcpuclockid(pthread_self(), &clock); }

  // Returns the one that this thread is in; null: none, or the thread runs callbacks of futures.
  static std::shared_ptr<BackwardPass> current() {
    thread_local std::weak_ptr<BackwardPass> last;
    const int graph_task = torch::autograd::get_current_graph_task_id();
    if (graph_task < 0 || callbacks_running > 0) return nullptr;
    auto pass = last.lock();
    if (!pass || pass->id != graph_task) last = pass = std::make_shared<BackwardPass>(graph_task);
    return pass;
  }

  bool is_blocked() {
    timespec time{};
    const auto when = steady_clock::now();
    if (clock_gettime(clock, &time) == 0 && !same_time(time, computed)) {
      computed = time;
      seen = when;
    }
    return when - seen > (at_end ? std::chrono::milliseconds(kBlockedAtEnd) : kBlocked);
  }

  const int id;
  clockid_t clock{};
  timespec computed{};
  steady_clock::time_point seen = steady_clock::now();
  std::atomic<bool> at_end{false};
};

GroupWork::GroupWork(Setup setup)
    : Work(setup.rank, setup.type, setup.title, setup.inputs),
      lane_(std::move(setup.lane)),
      title_(setup.title),
      outputs_(std::move(setup.outputs)),
      timeout_(setup.timeout),
      members_(std::move(setup.members)) {
  Observer* const observer = the_observer.load(std::memory_order_acquire);
  if (observer == nullptr) return;
  facts_ = {.name = name_in(setup.title),
            .bytes = std::max(bytes_of(setup.inputs), bytes_of(outputs_)),
            .group_size = setup.group_size,
            .bucket = observer->bucket(),
            .enqueued_ns = now_ns()};
}

bool GroupWork::test() {
  return std::all_of(parts_.works.begin(), parts_.works.end(), [](comm::Work& work) { return work.test(); });
}

std::vector<comm::MissingRank> GroupWork::missing() const {
  for (const comm::Work& work : parts_.works) {
    if (std::vector<comm::MissingRank> ranks = work.missing(); !ranks.empty()) return ranks;
  }
  return {};
}

bool GroupWork::isCompleted() {
  if (!is_over()) Progress::instance().advance(*lane_, this);
  if (!is_over()) return false;
  complete_future();
  return true;
}

bool GroupWork::wait(milliseconds timeout) {
  // PyTorch's default is the work's own deadline, after which the group has failed. A caller's deadline is the
  // caller's.
  const bool is_callers = timeout != kNoTimeout && timeout < timeout_;
  std::optional<Waiting> waiting;
  if (!is_over()) waiting.emplace(*this);
  const auto began = steady_clock::now();
  const auto until = began + (is_callers ? timeout : timeout_);
  auto warning = began + kUntilWarning, check = began;
  unsigned in_vain = 0;
  Progress& progress = Progress::instance();
  for (unsigned looks = 0; !is_over(); ++looks) {
    progress.advance(*lane_, this);
    if (is_over()) break;
    if (looks % kLooksForOthers == kLooksForOthers - 1) progress.advance_others(lane_.get());
    if (looks < kEagerLooks) continue;
    const auto now = steady_clock::now();
    if (now - began < kYielding) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(kSleep);
    if (now < check) continue;
    check = now + kBetweenChecks;
    if (now > warning) {
      lane_->log()->warn("{}", text_of("has waited " + format_duration(now - began)));
      warning += kUntilWarning;
    }
    if (now > until) {
      const std::string why = "Timed out after " + format_duration(is_callers ? timeout : timeout_);
      if (is_callers) throw comm::TimedOut(text_of(why));
      give_up(why);
    } else if (now - began > kUntilLeft) {
      const std::string why = waits_in_vain();
      in_vain = why.empty() ? 0 : in_vain + 1;
      if (in_vain == kChecksUntilLeft) give_up(why);
    }
  }
  waiting.reset();
  complete_future();
  return Work::wait(kNoTimeout);  // returns at once, or throws the error
}

std::string GroupWork::waits_in_vain() const {
  for (const comm::MissingRank& one : lane_->missing(*this)) {
    if (lane_->state_of(one.rank) == comm::PeerState::kFinished) {
      return "it waits for a rank that has left (its process group was destroyed, or its process ended)";
    }
    if (lane_->has_ended(one.rank)) return "it waits for a rank whose process has ended";
  }
  return {};
}

std::string GroupWork::text_of(const std::string& why) const {
  std::string missing;
  std::vector<int> ranks;
  for (const comm::MissingRank& one : lane_->missing(*this)) {
    missing +=
        (missing.empty() ? "; missing: rank " : "; rank ") + std::to_string(lane_->name_of(one.rank)) + " " + one.lacks;
    ranks.push_back(lane_->in_world(one.rank));
  }
  const std::string recorded = entry_.text();
  const std::string own = recorded.empty() ? title_ + " #" + std::to_string(sequence_) : "dtrain:" + recorded;
  const std::string last = lane_->flight().last_of(ranks);
  return own + ": " + why + missing + (last.empty() ? "" : "; " + last);
}

void GroupWork::give_up(const std::string& why) {
  const std::string text = lane_->explained(text_of(why), {});
  std::vector<WorkPtr> ended;
  lane_->abort(text);
  lane_->fail(std::make_exception_ptr(comm::TimedOut(text)), ended);
  Progress::instance().end(ended, this);
}

void GroupWork::abort() {
  give_up("it was aborted");
}

int GroupWork::sourceRank() const {
  return source_;
}

void GroupWork::write_outputs() {
  for (auto& [to, from] : parts_.copies) to.copy_(from.view(to.sizes()));
  if (parts_.after) parts_.after();
  if (opType_ != c10d::OpType::RECVANYSOURCE) return;
  const int source = parts_.works.front().source();
  const auto place = std::find(members_.begin(), members_.end(), source);
  source_ = place == members_.end() ? source : static_cast<int>(place - members_.begin());
}

void GroupWork::end() {
  if (!error_) {
    try {
      write_outputs();
      entry_.end();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  if (facts_.enqueued_ns != 0 && !error_) tell(*the_observer.load(std::memory_order_acquire));
  parts_ = {};
  finish(error_);
  const std::scoped_lock lock(future_mutex_);
  over_.store(true, std::memory_order_release);
}

void GroupWork::tell(Observer& observer) const {
  EndedOperation operation = facts_;
  operation.sequence = sequence_;
  operation.ended_ns = now_ns();
  operation.started_ns = operation.ended_ns;
  for (const comm::Work& work : parts_.works) {
    const std::int64_t started_ns = work.timing().started.count();
    if (started_ns != 0) operation.started_ns = std::min(operation.started_ns, started_ns);
  }
  operation.started_ns = std::max(operation.started_ns, operation.enqueued_ns);
  const std::int64_t since_ns = waited_since_ns_;
  operation.exposed_ns = waited_ns_ + (since_ns != 0 ? operation.ended_ns - since_ns : 0);
  observer.ended(operation);
}

bool GroupWork::is_of_backward() {
  const std::scoped_lock lock(future_mutex_);
  return pass_ && !completed_future_;
}

bool GroupWork::has_future(bool blocked) {
  const std::scoped_lock lock(future_mutex_);
  if (!future_ || completed_future_) return false;
  return !pass_ || (blocked && pass_->is_blocked());
}

void GroupWork::complete_future() {
  std::unique_lock lock(future_mutex_);
  const bool is_done_elsewhere = std::exchange(completed_future_, true);
  const auto future = future_;
  lock.unlock();
  if (!future) return;
  if (is_done_elsewhere) return future->wait();
  const RunningCallbacks running;
  error_ ? future->setError(error_) : future->markCompleted(c10::IValue(outputs_));
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  const std::scoped_lock lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (!completed_future_) pass_ = BackwardPass::current();
  if (pass_) {
    Progress::instance().watch(WorkPtr::reclaim_copy(this));
    // DDP waits for the futures of its buckets in a callback at the end of the pass. This one comes before it.
    torch::autograd::Engine::get_default_engine().queue_callback([self = WorkPtr::reclaim_copy(this), pass = pass_] {
      pass->at_end = true;
      try {
        self->wait();
      } catch (const std::exception&) {  // the future has it
      }
    });
  } else if (is_over()) {
    completed_future_ = true;
    error_ ? future_->setError(error_) : future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

JoinedWork::JoinedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool JoinedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool JoinedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

bool JoinedWork::wait(milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

Tensors JoinedWork::result() {
  Tensors all;
  for (const auto& work : works_) {
    const Tensors some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> JoinedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then([all = result()](c10::ivalue::Future&) { return c10::IValue(all); },
                                        c10::ListType::create(c10::TensorType::get()));
}

}  // namespace dtrain::torch_distributed
