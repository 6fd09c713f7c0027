// The process's place in the MPI job: MPI's start, its end, and the private communicator all of ours use.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/comm/mpi.h"
#include "mpi/mpi_thread.h"

namespace dtrain::comm {

// A tag consists of the communicator, its operation and that operation's message. Its 22 bits are what every transport
// of Open MPI offers. Ranks are never so far apart that two outstanding operations get the same tag.
inline constexpr int kCommunicatorBits = 4;
inline constexpr int kSequenceBits = 16;
inline constexpr int kMessageBits = 2;

// What the communicators of the job share. The MPI thread uses `world`. A rank that fails calls give_up(): from then on
// it calls MPI only to end the job, so MPI touches no memory that this rank releases.
struct MpiShared {
  MPI_Comm world = MPI_COMM_NULL;
  std::atomic<bool> given_up{false};
  // The first cause stays.
  void give_up(const std::string& because) {
    const std::scoped_lock lock(mutex);
    if (given_up) return;
    cause = because;
    given_up = true;
  }
  std::string why_given_up() {
    const std::scoped_lock lock(mutex);
    return cause;
  }
  // Memory that outlives its owner, for MPI may still use it.
  void keep(std::shared_ptr<std::byte> memory) {
    const std::scoped_lock lock(mutex);
    kept.push_back(std::move(memory));
  }

  std::mutex mutex;
  std::string cause;  // guarded by mutex, as is the next
  std::vector<std::shared_ptr<std::byte>> kept;
  std::atomic<int> communicators{0};  // made so far, by this rank's count: each has tags of its own
  MpiThread thread;                   // ends before the rest goes
};

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
  std::shared_ptr<MpiShared> shared_ = std::make_shared<MpiShared>();
  int rank_ = 0;
  int size_ = 1;
  bool succeeded_ = false;
  std::atomic<int> exit_code_{1};
};

}  // namespace dtrain::comm
