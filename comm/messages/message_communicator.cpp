#include "messages/message_communicator.h"

#include "collective/issuing.h"
#include "collective/local_memory.h"
#include "collective/release_pages.h"
#include "dtrain/base/error.h"
#include "messages/message_core.h"

namespace dtrain::comm {
namespace {

// Messages can be sent from any memory, so a Buffer is aligned heap memory. After a failure the memory is kept, because
// the transport or a peer may still use it.
class HeapBuffer final : public Buffer {
 public:
  HeapBuffer(std::shared_ptr<MessageShared> shared, std::size_t bytes)
      : shared_(std::move(shared)), data_(allocate_zeroed(bytes)), bytes_(bytes) {}
  ~HeapBuffer() override {
    if (shared_->given_up) shared_->keep(data_);
  }
  std::span<std::byte> bytes() override { return {data_.get(), bytes_}; }
  std::size_t release(std::size_t begin, std::size_t count) override {
    return release_pages(bytes().subspan(begin, count), PageKind::kPrivate);
  }

 private:
  std::shared_ptr<MessageShared> shared_;
  std::shared_ptr<std::byte> data_;
  std::size_t bytes_;
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
