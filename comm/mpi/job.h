// The process's place in the MPI job: MPI's start, its end, and the private communicator all of ours use.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>

#include "dtrain/comm/mpi.h"
#include "mpi/mpi_thread.h"

namespace dtrain::comm {

// What the communicators of the job share. The MPI thread uses `world`; `given_up` is set by whoever fails: from then
// on nothing calls MPI any more but to end the job, so MPI touches no memory that a failing rank releases.
struct MpiShared {
  MpiThread thread;
  MPI_Comm world = MPI_COMM_NULL;
  std::atomic<bool> given_up{false};
  std::atomic<int> communicators{0};  // made so far: each has message tags of its own
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
  void enter();
  void leave();

  const MpiOptions options_;
  std::shared_ptr<MpiShared> shared_ = std::make_shared<MpiShared>();
  int rank_ = 0;
  int size_ = 1;
  bool succeeded_ = false;
  std::atomic<int> exit_code_{1};
};

}  // namespace dtrain::comm
