// The functions of the module comm_gloo.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "gloo/abi.h"
#include "gloo/gloo_transport.h"
#include "messages/message_operation.h"
#include "messages/message_transport.h"

namespace dtrain::comm {
namespace {

std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

// Returns the first line of an exception of libtorch, without the stack that follows.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// The ranks' addresses travel over the control plane, whose connections prove that they belong to the run.
class ControlStore final : public c10d::Store {
 public:
  ControlStore(ControlPlane& control, std::string prefix, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), control_(control), prefix_(std::move(prefix)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<ControlStore>(control_, prefix_, timeout_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    control_.set(prefix_ + key, std::string(value.begin(), value.end()));
  }
  std::vector<std::uint8_t> get(const std::string& key) override { return bytes_of(control_.get(prefix_ + key)); }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!control_.get_within(prefix_ + key, std::chrono::milliseconds(0))) return false;
    }
    return true;
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) {
      if (control_.get_within(prefix_ + key, timeout)) continue;
      throw CommError("rank " + key + " did not give its address in time");
    }
  }
  // A process group does not use the functions below.
  std::int64_t add(const std::string&, std::int64_t) override { throw CommError("ControlStore cannot count"); }
  bool deleteKey(const std::string&) override { throw CommError("ControlStore deletes nothing"); }
  std::int64_t getNumKeys() override { throw CommError("ControlStore does not count its keys"); }

 private:
  ControlPlane& control_;
  const std::string prefix_;
};

class Module final : public GlooModule {
 public:
  std::unique_ptr<Communicator> make_communicator(ControlPlane& control, const std::vector<int>& members,
                                                  const std::string& address,
                                                  const CommunicatorOptions& options) const override {
    const World& world = control.world();
    // The communicator has its own name, because there may be another communicator of these ranks.
    const std::string id = control.gather("comm/gloo", random_hex(8))[0];
    MessageSetup setup{.backend = "gloo",
                       .shared = std::make_shared<MessageShared>(MessageThread::Looks::kWhenWoken),
                       .members = members,
                       .rank = world.rank,
                       .options = options};
    MessageShared* const shared = setup.shared.get();  // outlives the transport
    setup.transport = std::make_unique<GlooTransport>(
        connect(control, "comm/gloo/" + id + "/", address, options.timeout),
        GlooTransport::Options{.message_bytes = longest_message(world.size),
                               .members = members,
                               .wake = [shared] { shared->thread.wake(); },
                               .has_ended = [shared] { return shared->given_up.load(); }});
    return make_message_communicator(std::move(setup), control);
  }

 private:
  static c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(ControlPlane& control, const std::string& prefix,
                                                            const std::string& address,
                                                            std::chrono::milliseconds timeout) {
    const World& world = control.world();
    const BlockedSignals for_its_threads;
    try {
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
      options->threads = 1;  // threads of gloo's own collectives, which are not used
      return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<ControlStore>(control, prefix, timeout),
                                                         world.rank, world.size, options);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      throw CommError("gloo cannot connect this rank, at " + address + ", to the others: " + first_line(error),
                      "every host must accept TCP connections of the others on all ports; DTRAIN_NETWORK_INTERFACE "
                      "chooses the interface");
    }
  }
};

}  // namespace
}  // namespace dtrain::comm

extern "C" int dtrain_comm_gloo_module(int abi, const dtrain::comm::GlooModule*& module) {
  if (abi != dtrain::comm::kGlooModuleAbi) return dtrain::comm::kGlooModuleAbi;
  static const dtrain::comm::Module functions;
  module = &functions;
  return 0;
}
