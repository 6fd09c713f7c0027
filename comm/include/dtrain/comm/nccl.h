// NCCL as a backend: a rank a GPU. It lives in a module of its own (libdtrain_comm_nccl.so) that is opened here, on
// demand, and that opens NCCL and the CUDA runtime in turn: dtrain itself needs neither, and reports which is missing.
//
// Memory: a Buffer is device memory. Data of collectives is device memory, or host memory, which is staged through
// pinned memory and costs two copies more. Operations run on a stream of the communicator's own. Reductions are NCCL's:
// narrow types are not reduced in float32, and the order of sums is NCCL's own. kMean and scales become a factor on
// every input, which is rounded to the data's type; min, max and products are not scaled (an error). Threads: see
// Communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

struct NcclOptions {
  int device = 0;             // CUDA's number of the GPU
  std::string name = "nccl";  // differs between the communicators of one control plane
  // The calling thread's current cudaStream_t: an operation begins after what is on it when it is issued, and
  // Work::join() makes it wait. Empty: an operation begins at once, and join() waits on the host.
  std::function<void*()> current_stream;
  // NCCL does not notice when ranks call different operations. So many operations (and every allocation) are therefore
  // compared with rank 0's through the control plane before they are handed to NCCL; later ones when one of them times
  // out. The first steps of a training show what can differ.
  std::uint64_t compared_operations = 128;
};

class NcclCommunicator : public virtual Communicator {
 public:
  // Makes the stream wait, on the device, for the operation; nothing blocks. The Work must be of this communicator, and
  // not of an open group.
  virtual void order_after(void* stream, const Work& work) = 0;

  // Collective over the ranks that are left: the communicator without the ranks in `excluded` (numbers of this one),
  // after a failure or without one. `control` is theirs, of a new generation; ranks keep their order. This communicator
  // must not be used any more; its Buffers do not belong to the new one.
  virtual std::unique_ptr<NcclCommunicator> shrink(ControlPlane& control, const std::vector<int>& excluded,
                                                   const std::string& name) = 0;
};

// Collective over `control`, which must outlive the communicator and whose failures abort it. CommError names what is
// missing (the module, a library, a GPU), the ranks that did not come, or those with another version of NCCL.
std::unique_ptr<NcclCommunicator> make_nccl_communicator(ControlPlane& control, const NcclOptions& nccl,
                                                         const CommunicatorOptions& options);

}  // namespace dtrain::comm
