// The functions of the module comm_gloo.
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "gloo/abi.h"

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

// While it exists, libtorch logs no warnings unless the user wants them: its store warns of each address that has no
// name in the DNS.
class ErrorsOnly {
 public:
  ErrorsOnly() : before_(FLAGS_caffe2_log_level) {
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  ~ErrorsOnly() { FLAGS_caffe2_log_level = before_; }
  ErrorsOnly(const ErrorsOnly&) = delete;
  ErrorsOnly& operator=(const ErrorsOnly&) = delete;

 private:
  const int before_;
};

class TcpStore final : public RendezvousStore {
 public:
  explicit TcpStore(const Options& options) {
    c10d::TCPStoreOptions store;
    store.port = options.port;
    store.isServer = options.serves;
    store.waitWorkers = false;
    store.timeout = options.timeout;
    try {
      const ErrorsOnly errors_only;
      const BlockedSignals for_its_threads;
      store_ = c10::make_intrusive<c10d::TCPStore>(options.address, store);
    } catch (const std::exception& error) {
      const std::string where = options.address + ":" + std::to_string(options.port);
      throw CommError(
          (options.serves ? "cannot listen on " : "cannot reach rank 0 at ") + where + ": " + first_line(error),
          options.serves ? "another program uses the port: set MASTER_PORT to another one on all hosts"
                         : "look at the output of rank 0");
    }
  }
  void set(const std::string& key, const std::string& value) override {
    guarded([&] { store_->set(key, bytes_of(value)); });
  }
  std::string get(const std::string& key) override {
    std::string value;
    guarded([&] {
      const std::vector<std::uint8_t> bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

 private:
  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw CommError("the store of rank 0 does not answer: " + first_line(error), "look at the output of rank 0");
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
};

class Module final : public GlooModule {
 public:
  std::unique_ptr<RendezvousStore> open_store(const RendezvousStore::Options& options) const override {
    return std::make_unique<TcpStore>(options);
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
