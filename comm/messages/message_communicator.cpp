#include <algorithm>
#include <thread>

#include "collective/issuing.h"
#include "collective/pages.h"
#include "dtrain/base/error.h"
#include "messages/message_core.h"
#include "messages/message_transport.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kHellosAhead = 16;  // operations that may have sent their hello
constexpr std::size_t kMovingData = 2;    // operations whose data flows at a time: the second fills the first's gaps
constexpr std::chrono::seconds kClosing{1};

int first_tag(int communicator, std::uint64_t sequence) {
  const auto low = static_cast<int>(sequence & ((1u << kSequenceBits) - 1));
  return ((communicator << kSequenceBits) | low) << kMessageBits;
}

}  // namespace

MessageWork::MessageWork(std::shared_ptr<MessageCore> core, const Descriptor& descriptor, const void* in, void* out)
    : core_(std::move(core)),
      operation_(descriptor, in, out, core_->rank(), core_->world_size()),
      route_{first_tag(core_->setup_.number, descriptor.sequence), core_->setup_.members, core_->rank()} {}

std::size_t MessageWork::bytes() const {
  return payload_bytes(operation_.descriptor(), core_->world_size());
}

bool MessageWork::test() {
  if (complete_.load(std::memory_order_acquire)) return true;
  if (core_->failed_.load(std::memory_order_acquire)) core_->throw_failure(this, timing_.enqueued);
  return false;
}

void MessageWork::wait() {
  if (!complete_.load(std::memory_order_acquire)) core_->wait_for(*this);
}

MessageCore::MessageCore(MessageSetup setup) : setup_(std::move(setup)) {
  if (!setup_.options.log) setup_.options.log = make_null_logger();
}

std::shared_ptr<MessageWork> MessageCore::issue(Descriptor descriptor, const void* in, void* out) {
  const Nanoseconds began = now();
  check();
  descriptor.sequence = sequence_++;
  auto work = std::make_shared<MessageWork>(shared_from_this(), descriptor, in, out);
  work->timing_.enqueued = began;
  work->pins_.take(setup_.options.arena.get(), descriptor, in, out, world_size());
  if (group_open_) {
    grouped_.push_back(work);
  } else {
    submit({work});
  }
  work->timing_.exposed = now() - began;
  return work;
}

void MessageCore::submit(std::vector<Shared> works) {
  for (const Shared& work : works) work->submitted_ = true;
  {
    const std::scoped_lock lock(mutex_);
    inbox_.insert(inbox_.end(), works.begin(), works.end());
  }
  setup_.shared->thread.begin();
}

void MessageCore::begin_group() {
  check();
  if (group_open_) throw CommError("begin_group: a group is open already, and groups do not nest");
  group_open_ = true;
}

void MessageCore::end_group() {
  if (!group_open_) throw CommError("end_group: no group is open");
  group_open_ = false;
  check();
  submit(std::exchange(grouped_, {}));
}

void MessageCore::check() {
  if (failed_.load(std::memory_order_acquire)) throw_failure(nullptr, {});
}

// Only the first cause counts. All communicators that share the transport give up with it: after an error MPI
// guarantees nothing, so no communicator of this process calls it again.
void MessageCore::fail(const std::string& cause, bool own) {
  {
    const std::scoped_lock lock(mutex_);
    if (failed_) return;
    cause_ = cause;
    own_failure_ = own;
    failed_.store(true, std::memory_order_release);
  }
  setup_.shared->give_up(cause);
  changed_.notify_all();
  setup_.shared->thread.wake();  // a waiter may be doing its work
}

Polled MessageCore::poll() {
  if (setup_.shared->given_up) fail(setup_.shared->why_given_up(), false);
  const std::scoped_lock lock(state_mutex_);
  if (failed_) return {};  // with the mutex held: see wait_until_untouched()
  {
    const std::scoped_lock inbox_lock(mutex_);
    pending_.insert(pending_.end(), inbox_.begin(), inbox_.end());
    inbox_.clear();
  }
  try {
    Polled polled = advance();
    polled.moved = setup_.transport->flush() || polled.moved;
    return polled;
  } catch (const std::exception& error) {
    fail("rank " + rank_name(rank()) + ": " + error.what(), true);
    return {};
  }
}

// Hellos of several operations are sent ahead: they carry small payloads and cost little. Large data is exchanged for
// two operations at a time, the second filling the gaps of the first. Completion is in the order of issue.
Polled MessageCore::advance() {
  bool moved = setup_.transport->poll([](const Message& message) { message.operation->done(message); });
  start_operations();
  for (std::size_t i = 0; i < started_; ++i) {
    MessageOperation& operation = pending_[i]->operation_;
    if (!operation.data_begun() && operation.all_entered()) {
      check_same(operation);
      operation.begin_data();
    }
    // A small operation does not wait for its turn: its data has come with the hellos.
    if (operation.is_small() || i < kMovingData) moved = operation.advance(*setup_.transport) || moved;
  }
  complete_in_order();
  return {moved, !pending_.empty()};
}

void MessageCore::start_operations() {
  while (started_ < std::min(pending_.size(), kHellosAhead)) {
    MessageWork& work = *pending_[started_++];
    work.timing_.started = now();
    work.operation_.start(work.route_, *setup_.transport);
  }
}

void MessageCore::complete_in_order() {
  bool any = false;
  while (!pending_.empty() && pending_.front()->operation_.finished()) {
    const Shared work = std::move(pending_.front());
    pending_.pop_front();
    --started_;
    work->timing_.ended = now();
    work->pins_.release();
    work->complete_ = true;  // before waiting_ is read: a waiter does the two the other way round
    any = true;
  }
  if (!any || waiting_.load() == 0) return;
  // A waiter holds the mutex from reading complete_ until it sleeps. The lock makes sure that no waiter is in between.
  { const std::scoped_lock lock(mutex_); }
  changed_.notify_all();
}

void MessageCore::check_same(const MessageOperation& operation) const {
  const int size = world_size();
  bool same = true;
  for (int r = 0; r < size; ++r) same = same && same_operation(operation.theirs(r), operation.descriptor());
  if (same) return;
  std::string text = "the ranks entered different operations as their operation " +
                     std::to_string(operation.descriptor().sequence) + ": rank " + rank_name(0) + " " +
                     describe(operation.theirs(0));
  int shown = 0;
  for (int r = 1; r < size && shown < 4; ++r) {
    if (same_operation(operation.theirs(r), operation.theirs(0))) continue;
    text += ", rank " + rank_name(r) + " " + describe(operation.theirs(r));
    ++shown;
  }
  throw CommError(text);
}

void MessageCore::close() {
  const auto deadline = std::chrono::steady_clock::now() + kClosing;
  for (;;) {
    {
      const auto state = lock_state();
      if (!state) break;
      const std::scoped_lock lock(mutex_);
      if (failed_ || (pending_.empty() && inbox_.empty())) return;
    }
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The transport may still use the memory of the remaining operations. So they must not run any more, and nothing is
  // released: works and core keep each other alive.
  fail("rank " + rank_name(rank()) + " has closed its communicator", true);
}

void MessageCore::release() {
  if (!setup_.transport->uses_memory_in_calls_alone()) return;
  std::vector<Shared> works = std::exchange(grouped_, {});
  const auto state = lock_state();
  const std::scoped_lock lock(mutex_);
  works.insert(works.end(), inbox_.begin(), inbox_.end());
  works.insert(works.end(), pending_.begin(), pending_.end());
  inbox_.clear();
  pending_.clear();
  started_ = 0;
}

namespace {

// Messages can be sent from any memory, so a Buffer is aligned heap memory. After a failure the memory is kept, because
// the transport or a peer may still use it.
class HeapBuffer final : public PrivateBuffer {
 public:
  HeapBuffer(std::shared_ptr<MessageShared> shared, std::size_t bytes)
      : PrivateBuffer(bytes), shared_(std::move(shared)) {}
  ~HeapBuffer() override {
    if (shared_->given_up) shared_->keep(data());
  }

 private:
  std::shared_ptr<MessageShared> shared_;
};

class MessageCommunicator final : public IssuingCommunicator {
 public:
  MessageCommunicator(std::uint32_t generation, MessageSetup setup)
      : generation_(generation), shared_(setup.shared), core_(std::make_shared<MessageCore>(std::move(setup))) {
    poller_ = shared_->thread.add([core = core_] { return core->poll(); });
  }
  ~MessageCommunicator() override {
    core_->close();
    shared_->thread.remove(poller_);
    core_->release();
  }

  int rank() const override { return core_->rank(); }
  int world_size() const override { return core_->world_size(); }
  std::uint32_t generation() const override { return generation_; }
  std::string_view backend() const override { return core_->backend(); }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    agree(Kind::kAllocate, bytes, core_->group_open());
    return std::make_unique<HeapBuffer>(shared_, bytes);
  }
  std::unique_ptr<Buffer> allocate_common(std::size_t bytes) override {
    agree(Kind::kAllocateCommon, bytes, core_->group_open());
    return nullptr;
  }
  void begin_group() override { core_->begin_group(); }
  void end_group() override { core_->end_group(); }
  void progress() override { core_->check(); }
  void abort(const std::string& cause) override { core_->abort(cause); }

  std::weak_ptr<MessageCore> core() const { return core_; }

 private:
  Work issue(const Descriptor& descriptor, const void* in, void* out) override {
    return Work(core_->issue(descriptor, in, out));
  }

  const std::uint32_t generation_;
  const std::shared_ptr<MessageShared> shared_;
  const std::shared_ptr<MessageCore> core_;
  int poller_ = -1;
};

}  // namespace

std::unique_ptr<Communicator> make_message_communicator(MessageSetup setup, ControlPlane& control) {
  setup.peer_state = [&control](int rank) { return std::string(name_of(control.peer_state(rank))); };
  auto communicator = std::make_unique<MessageCommunicator>(control.generation(), std::move(setup));
  // The callback may outlive the communicator.
  control.on_failure([core = communicator->core()](const RankFailure& failure) {
    if (const auto alive = core.lock()) alive->abort(failure_text(failure));
  });
  return communicator;
}

}  // namespace dtrain::comm
