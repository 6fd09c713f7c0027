// The process's place in the MPI job: MPI's start, its end, and the private MPI communicator that all of ours use.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/mpi.h"
#include "messages/message_shared.h"

namespace dtrain::comm {

// The state that the communicators of the job share. `world` belongs to the MPI thread.
struct MpiJobState : MessageShared {
  MpiJobState() : MessageShared(MessageThread::Looks::kOften) {}
  MPI_Comm world = MPI_COMM_NULL;
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
  std::shared_ptr<MpiJobState> shared_ = std::make_shared<MpiJobState>();
  int rank_ = 0;
  int size_ = 1;
  bool succeeded_ = false;
  std::atomic<int> exit_code_{1};
};

}  // namespace dtrain::comm
