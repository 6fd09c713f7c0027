// NCCL as a backend: one rank for each GPU. It is in a module of its own (libdtrain_comm_nccl.so) that is opened on
// demand and that opens NCCL and the CUDA runtime. So dtrain itself needs neither; an error names the missing one.
//
// Memory: a Buffer is device memory. The data of collectives may be in device memory or in host memory. Data in host
// memory is staged through pinned memory, which costs two more copies. Operations run on a stream of the communicator's
// own. Reductions are NCCL's: narrow types are not reduced in float32, and the order of sums is NCCL's own. kMean and
// scales become a factor on every input, which is rounded to the data's type; min, max and products are not scaled (an
// error). NCCL has no bitwise operations and does not reduce int16 (an error). Threads: see Communicator.
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
  std::string name = "nccl";  // unique among the communicators of one control plane
  // Returns the calling thread's current cudaStream_t. An operation begins after the work that is on this stream when
  // the operation is issued, and Work::join() makes this stream wait. Empty: an operation begins at once, and join()
  // waits on the host.
  std::function<void*()> current_stream;
  // Number of operations at the start that are compared with rank 0's through the control plane before NCCL gets them,
  // because NCCL does not notice when ranks call different operations. Every allocation is compared, too. Later
  // operations are compared only when one of them times out: a difference usually shows in the first steps of a
  // training.
  std::uint64_t compared_operations = 128;
};

class NcclCommunicator : public virtual Communicator {
 public:
  // Makes the stream wait for the operation, on the device; the host does not wait. The Work must be of this
  // communicator, and not of an open group.
  virtual void order_after(void* stream, const Work& work) = 0;

  // Between these two calls the caller captures its current stream as a CUDA graph. Call begin_capture() before the
  // capture of the graph begins, and end_capture() right before or after it ends, even if it has failed. Operations
  // issued in between become part of the graph and do not run now. join() orders streams as usual. A graph must end on
  // the stream that it began on, so the Work of each operation, or of a later one, must be joined. Until the capture
  // ends, their Work is not complete and cannot be waited for; afterwards it is complete and has no times. Operations
  // after the capture are numbered as if it had not happened. All ranks capture the same operations, and replay the
  // graph at the same place among their other operations.
  //
  // begin_capture() hands all issued operations to the device. Those that are not complete then cannot be joined before
  // the capture ends. Join all of them before a graph is replayed: a replay waits for the stream that it is launched
  // on, and for nothing else.
  //
  // CommError: there is no current_stream; an operation is on host memory, has a scale other than kMean's, or would be
  // compared with rank 0's; memory is allocated; or, from end_capture(), an operation was never joined (the error names
  // it). A capture that fails leaves the communicator as it was, unless NCCL itself has failed.
  //
  // A captured operation uses its memory at each replay: Buffers must outlive the graph. The graph must be destroyed
  // before the communicator, also after a failure: NCCL waits for that.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  // Call it instead of begin_capture() for a graph that is thrown away after its capture; no operation reaches NCCL.
  // While operations are captured, NCCL makes the ranks wait for each other. So if the capture of one rank fails, the
  // others do not return. A rehearsal shows on which ranks a capture would fail.
  virtual void begin_rehearsal() = 0;
  // To be called after each launch of such a graph on the caller's current stream. Until the device has finished the
  // graph, it counts as one operation under way. Errors call it "a replayed step, N operations from all_reduce(...)",
  // with the operations of the graph that was captured last. progress(), the timeout and failures treat it as any other
  // operation. CommError as for an operation.
  virtual void replayed() = 0;
  // True if the next operation would be compared with rank 0's; such operations cannot be captured. All ranks get the
  // same result.
  virtual bool compares() const = 0;

  // Makes the communicator without the ranks in `excluded` (their numbers in this one). Collective over the ranks that
  // are left, after a failure or without one. `control` connects these ranks and has a new generation. Ranks keep their
  // order. This communicator must not be used any more; its Buffers do not belong to the new one.
  virtual std::unique_ptr<NcclCommunicator> shrink(ControlPlane& control, const std::vector<int>& excluded,
                                                   const std::string& name) = 0;
};

// Collective over `control`, which must outlive the communicator. A failure that it reports aborts the communicator.
// CommError names a missing module, library or GPU, the ranks that did not take part, or those with another version of
// NCCL.
std::unique_ptr<NcclCommunicator> make_nccl_communicator(ControlPlane& control, const NcclOptions& nccl,
                                                         const CommunicatorOptions& options);

}  // namespace dtrain::comm
