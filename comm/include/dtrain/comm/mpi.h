// Open MPI as a backend. It is in a module of its own (libdtrain_comm_mpi.so) that is opened on demand. So dtrain
// itself needs no MPI; if MPI is requested, an error names the missing part.
//
// A process can initialise MPI only once, so there is one MpiJob, which the program's main makes and passes on. A
// thread of the MpiJob makes all MPI calls, so operations go on while the ranks compute. A program that uses dtrain
// must not call MPI itself. The calls below may come from any thread, one at a time; the job outlives its
// communicators.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

struct MpiOptions {
  std::chrono::milliseconds timeout{600'000};  // for all ranks of the job to enter MPI, and of broadcast()
  // Delay between a rank's failure and the end of the whole job, so that the others can receive and record the cause.
  std::chrono::milliseconds grace{1'000};
  // False: a rank that fails ends alone, and what has started the job ends it.
  bool aborts = true;
  // Names the ranks that have not entered MPI, for the error of a time-out; may be empty. join() calls it.
  std::function<std::string()> missing{};
  Logger log;
};

class MpiJob {
 public:
  // Collective over the processes that mpirun started. CommError names the missing part (the module, Open MPI's
  // library) or the reason for which MPI does not start.
  static std::shared_ptr<MpiJob> join(const MpiOptions& options);
  // After succeed() it calls MPI_Finalize (collective), otherwise MPI_Abort after `grace`, which ends every rank of the
  // job and this process. A rank that fails must not leave the others waiting inside MPI. Without MpiOptions::aborts it
  // ends this process alone.
  virtual ~MpiJob() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns rank 0's text (at most 4000 bytes), for the rendezvous. Collective. CommError at the deadline.
  virtual std::string broadcast(const std::string& text) = 0;

  // Collective over `control`, whose rank i is rank members[i] of the job; errors name ranks by these numbers.
  // `control` must outlive the communicator. A failure that it reports aborts the communicator.
  virtual std::unique_ptr<Communicator> make_communicator(ControlPlane& control, const std::vector<int>& members,
                                                          const CommunicatorOptions& options) = 0;

  // Marks the job as successful: the destructor then ends MPI with MPI_Finalize.
  virtual void succeed() = 0;
  // Sets the exit code that mpirun gets from a job that does not succeed; 1 by default.
  virtual void set_exit_code(int code) = 0;
};

}  // namespace dtrain::comm
