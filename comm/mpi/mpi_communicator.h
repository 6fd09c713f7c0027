// Makes the communicator over MPI of some ranks of the job.
#pragma once

#include <memory>
#include <vector>

#include "dtrain/comm/backends.h"
#include "mpi/job.h"

namespace dtrain::comm {

// `number`: of this communicator among the job's, the same on all its ranks.
std::unique_ptr<Communicator> make_mpi_communicator(const std::shared_ptr<MpiShared>& shared, int number,
                                                    ControlPlane& control, const std::vector<int>& members,
                                                    const CommunicatorOptions& options);

}  // namespace dtrain::comm
