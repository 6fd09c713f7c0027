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

  // Between the two the caller captures its current stream as a CUDA graph: begin_capture() comes before the graph's
  // capture begins, end_capture() right before or after its end, also where it has failed. Operations issued in between
  // become part of the graph and do not run now; join() orders streams as ever, and the Work of each, or of one behind
  // it, must be joined, because a graph ends on the stream that it began on. Their Work is not complete in between and
  // cannot be waited for; it is complete, without times, when the capture ends. After it the
  // numbers of operations go on where they were before. All ranks capture the same operations, and replay the graph at
  // the same place among their other ones.
  //
  // begin_capture() hands over all that was issued; what is not complete then cannot be joined before the capture ends.
  // Join all of it before a graph is replayed: a replay is ordered behind the stream that it is launched on, and behind
  // nothing else.
  //
  // CommError: without current_stream; for operations on host memory, with scales other than kMean's, or that would be
  // compared with rank 0's; for allocations; from end_capture() where an operation was never joined, which it names. A
  // capture that fails leaves the communicator as it was, unless NCCL itself has failed.
  //
  // A captured operation uses its memory at each replay: Buffers must outlive the graph. The graph must be destroyed
  // before the communicator, also after a failure: NCCL waits for that.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  // Instead of begin_capture(), for a graph that is captured to be thrown away: NCCL is given nothing. While operations
  // are captured NCCL makes the ranks wait for each other, so where the capture of one rank fails, the others do not
  // return. A rehearsal shows on which ranks it would fail.
  virtual void begin_rehearsal() = 0;
  // After each launch of such a graph on the caller's current stream: until the device is past it, it counts as an
  // operation under way, which errors call "a replayed step, N operations from all_reduce(...)", of the graph that was
  // captured last. progress(), the timeout and failures treat it as any other. CommError as for an operation.
  virtual void replayed() = 0;
  // Whether the next operation would be compared with rank 0's: nothing is captured before that has ended. The same on
  // all ranks.
  virtual bool compares() const = 0;

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
