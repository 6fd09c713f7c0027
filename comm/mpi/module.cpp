// The module comm_mpi: the process's place in the MPI job, and messages over MPI. Only the MPI thread calls MPI.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/mpi.h"
#include "messages/message_operation.h"
#include "messages/message_thread.h"
#include "messages/message_transport.h"
#include "mpi/abi.h"

namespace dtrain::comm {
namespace {

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return std::string(text, static_cast<std::size_t>(length));
}

void mpi_call(int code, const char* what) {
  if (code != MPI_SUCCESS) throw CommError(std::string(what) + " failed: " + mpi_error_text(code));
}

// Messages over MPI: the outstanding requests, and the message of each. Used by the MPI thread alone.
class MpiTransport final : public MessageTransport {
 public:
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {}

  void send(const Message& message, int tag, const void* data, std::size_t bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_call(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, message.job_rank, tag, comm_, &request), "MPI_Isend");
    requests_.push_back(request);
    messages_.push_back(message);
  }
  void receive(const Message& message, int tag, void* data, std::size_t bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_call(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, message.job_rank, tag, comm_, &request), "MPI_Irecv");
    requests_.push_back(request);
    messages_.push_back(message);
  }
  bool poll(const std::function<void(const Message&)>& done) override {
    if (requests_.empty()) return false;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (int i = 0; i < count; ++i) {
        const int error = statuses_[static_cast<std::size_t>(i)].MPI_ERROR;
        if (error == MPI_SUCCESS) continue;
        const Message& message = messages_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
        throw CommError(std::string(message.received ? "receiving from" : "sending to") + " rank " +
                        std::to_string(message.job_rank) + " failed: " + mpi_error_text(error));
      }
    }
    mpi_call(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED || count == 0) return false;
    std::vector<Message> over;
    for (int i = 0; i < count; ++i) {
      over.push_back(messages_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])]);
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      messages_[kept++] = messages_[i];
    }
    requests_.resize(kept);
    messages_.resize(kept);
    for (const Message& message : over) done(message);
    return true;
  }

 private:
  const MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;  // message of the request with the same index
  std::vector<int> indices_;       // used in poll(), like the next member
  std::vector<MPI_Status> statuses_;
};

// The state that the communicators of the job share. `world` belongs to the MPI thread.
struct MpiJobState : MessageShared {
  MPI_Comm world = MPI_COMM_NULL;
};

// The process's place in the MPI job: MPI's start, its end, and the private MPI communicator that all of ours use.
class MpiJobImpl final : public MpiJob {
 public:
  explicit MpiJobImpl(MpiOptions options);
  ~MpiJobImpl() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string broadcast(const std::string& text) override;
  std::unique_ptr<Communicator> make_communicator(ControlPlane& control, const std::vector<int>& members,
                                                  const CommunicatorOptions& options) override;
  void succeed() override { succeeded_ = true; }
  void set_exit_code(int code) override { exit_code_ = code; }

 private:
  void leave();

  const MpiOptions options_;
  std::shared_ptr<MpiJobState> shared_ = std::make_shared<MpiJobState>();
  int rank_ = 0;
  int size_ = 1;
  bool succeeded_ = false;
  std::atomic<int> exit_code_{1};
};

constexpr std::size_t kBroadcastBytes = 4096;
constexpr std::chrono::seconds kAbortTakes{2};
constexpr std::chrono::seconds kFinalizeTakes{30};

struct WorldPlace {
  int rank = 0;
  int size = 1;
};

WorldPlace enter_mpi(MpiJobState& shared) {
  int entered = 0;
  mpi_call(MPI_Initialized(&entered), "MPI_Initialized");
  if (entered != 0) {
    throw CommError("this program has called MPI_Init itself",
                    "leave MPI to dtrain: it makes all MPI calls of the process on one thread");
  }
  // Over TCP Open MPI asks the receiver before it sends more than 64 KB, and the question waits behind all data that is
  // queued in front of a slow link. Chunks are received in their place as soon as both sides have entered the
  // operation, so they are sent at once. (100 Mbit/s, 5.6 MB: 590 ms with the question, 490 without.)
  const std::string limit = std::to_string(kLargestChunk + kLargestChunk / 4);
  ::setenv("OMPI_MCA_btl_tcp_eager_limit", limit.c_str(), /*overwrite=*/0);
  int provided = MPI_THREAD_SINGLE;
  mpi_call(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) throw CommError("this MPI cannot be used by a process with several threads");
  mpi_call(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_call(MPI_Comm_dup(MPI_COMM_WORLD, &shared.world), "MPI_Comm_dup");
  mpi_call(MPI_Comm_set_errhandler(shared.world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  void* largest_tag = nullptr;
  int known = 0;
  mpi_call(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &known), "MPI_Comm_get_attr");
  constexpr int kTags = 1 << (kCommunicatorBits + kSequenceBits + kMessageBits);
  if (known == 0 || *static_cast<const int*>(largest_tag) < kTags - 1) {
    throw CommError("this MPI has too few message tags: dtrain needs " + std::to_string(kTags));
  }
  WorldPlace place;
  mpi_call(MPI_Comm_rank(shared.world, &place.rank), "MPI_Comm_rank");
  mpi_call(MPI_Comm_size(shared.world, &place.size), "MPI_Comm_size");
  return place;
}

// Broadcasts rank 0's `text`, until the deadline; on the MPI thread.
std::string broadcast_until(const MpiJobState& shared, int rank, const std::string& text,
                            std::chrono::steady_clock::time_point deadline) {
  std::string data(kBroadcastBytes, '\0');
  if (rank == 0) std::memcpy(data.data(), text.data(), text.size());
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_call(MPI_Ibcast(data.data(), static_cast<int>(data.size()), MPI_CHAR, 0, shared.world, &request), "MPI_Ibcast");
  for (int done = 0;;) {
    mpi_call(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return data.c_str();
    if (std::chrono::steady_clock::now() > deadline) throw CommError("rank 0's message did not come in time");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

MpiJobImpl::MpiJobImpl(MpiOptions options) : options_(std::move(options)) {
  const auto entering = std::make_shared<std::promise<WorldPlace>>();
  auto place = entering->get_future();
  shared_->thread.post([entering, shared = shared_.get()] {
    try {
      entering->set_value(enter_mpi(*shared));
    } catch (...) {
      entering->set_exception(std::current_exception());
    }
  });
  if (place.wait_for(options_.timeout) != std::future_status::ready) {
    // The thread does not return from MPI_Init, so this process can only end.
    static_cast<void>(new std::shared_ptr<MpiJobState>(shared_));
    const std::string missing = options_.missing ? "; missing: " + options_.missing() : std::string();
    throw CommError("MPI did not start within " + format_duration(options_.timeout) +
                        ": not every process of the job has come to MPI_Init" + missing,
                    "look at the missing ranks' output");
  }
  const WorldPlace mine = place.get();
  rank_ = mine.rank;
  size_ = mine.size;
}

std::string MpiJobImpl::broadcast(const std::string& text) {
  if (text.size() >= kBroadcastBytes)
    throw CommError("a text of " + std::to_string(text.size()) + " bytes is too long");
  std::promise<std::string> received;
  shared_->thread.post([&] {
    try {
      received.set_value(broadcast_until(*shared_, rank_, text, std::chrono::steady_clock::now() + options_.timeout));
    } catch (const std::exception& error) {
      shared_->give_up(error.what());
      received.set_exception(std::current_exception());
    }
  });
  return received.get_future().get();
}

std::unique_ptr<Communicator> MpiJobImpl::make_communicator(ControlPlane& control, const std::vector<int>& members,
                                                            const CommunicatorOptions& options) {
  const World& world = control.world();
  const auto me = static_cast<std::size_t>(world.rank);
  if (members.size() != static_cast<std::size_t>(world.size) || members[me] != rank_) {
    throw CommError("rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) + " is rank " +
                        std::to_string(rank_) + " of " + std::to_string(size_) + " to MPI",
                    "start all ranks with one mpirun");
  }
  // Ranks may have made different numbers of communicators before.
  int number = 0;
  for (const std::string& theirs : control.gather("comm/mpi", std::to_string(shared_->communicators.load()))) {
    number = std::max(number, std::stoi(theirs));
  }
  if (number >= 1 << kCommunicatorBits) throw CommError("too many communicators over MPI in one job");
  shared_->communicators = number + 1;
  return make_message_communicator(
      {"mpi", shared_, std::make_unique<MpiTransport>(shared_->world), number, members, world.rank, {}, options},
      control);
}

void MpiJobImpl::leave() {
  std::promise<void> left;
  const bool finalize = succeeded_ && !shared_->given_up;
  shared_->thread.post([&] {
    if (finalize) {
      MPI_Comm_free(&shared_->world);
      MPI_Finalize();
    } else {
      MPI_Abort(MPI_COMM_WORLD, exit_code_);  // ends this process, unless it fails
    }
    left.set_value();
  });
  const auto patience = finalize ? kFinalizeTakes : kAbortTakes;
  if (left.get_future().wait_for(patience) == std::future_status::ready && finalize) return;
  // MPI hangs. mpirun ends the job when one of its processes ends without MPI_Finalize.
  _exit(finalize ? 1 : exit_code_.load());
}

MpiJobImpl::~MpiJobImpl() {
  if (shared_->world == MPI_COMM_NULL) return;  // never entered
  if (!succeeded_ || shared_->given_up) {
    shared_->give_up("this process ends");
    std::fflush(nullptr);
    if (!options_.aborts) _exit(exit_code_.load());
    std::this_thread::sleep_for(options_.grace);
  }
  leave();
}

}  // namespace

}  // namespace dtrain::comm

extern "C" int dtrain_comm_mpi_join(int abi, const dtrain::comm::MpiOptions& options,
                                    std::shared_ptr<dtrain::comm::MpiJob>& job) {
  if (abi != dtrain::comm::kMpiModuleAbi) return dtrain::comm::kMpiModuleAbi;
  job = std::make_shared<dtrain::comm::MpiJobImpl>(options);
  return 0;
}
